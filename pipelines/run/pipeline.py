"""A pipeline in Python: plan it, start it, run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster import CodeArchive, activate_code, pack_code, require, run_checks
from pipelines.errors import RunFailedError
from pipelines.plan import Compiled, Plan, compile_plan
from pipelines.run.chaos import read_chaos, resumes_by_itself
from pipelines.run.folder import RunFolder
from pipelines.run.handle import RunHandle
from pipelines.run.record import RunRecord
from pipelines.run.submission import submit_attempt
from pipelines.spec import PipelineSpec, find_places, load_spec
from pipelines.training.gang.chaos import ChaosSpec

FooterProgress = Callable[[int, int], None]
"""Called with (footers read, footers in all)."""


class Pipeline:
    """A checked spec, ready to be planned and run.

    Parameters
    ----------
    spec : path, mapping or PipelineSpec
        A YAML file, a spec's keys as a mapping, or a spec made of objects.

    Raises
    ------
    SpecError
        All faults of the spec at once.
    UsageError
        The file can't be read.

    Examples
    --------
    >>> record = Pipeline("data_samples/flights_logistic.yaml").run()  # doctest: +SKIP
    >>> record.metrics["test"]["auc"], record.version  # doctest: +SKIP
    """

    def __init__(self, spec: str | Path | Mapping[str, Any] | PipelineSpec) -> None:
        self.spec = load_spec(spec)

    def __repr__(self) -> str:
        return f"Pipeline({self.spec.name!r})"

    def plan(self, *, progress: FooterProgress | None = None) -> Plan:
        """Check the spec against its data and say what a run would do; nothing runs, only a manifest is written.

        Raises
        ------
        SpecError, NotFoundError, DataError, StorageError
            See `compile_plan`.
        """
        return self._compile(progress)[0].plan

    def start(self, *, chaos: str | ChaosSpec | None = None, progress: FooterProgress | None = None) -> RunHandle:
        """Start a run's driver, detached, and return as soon as its process runs.

        Parameters
        ----------
        chaos : str or ChaosSpec, optional
            Faults to inject into the training on a local cluster, as in ``"kill=2, stop=1, slow=1:3x, seed=7"``: ranks
            that are killed, stopped or slowed, whole workers (``worker=1``) or the driver (``driver=1``) killed.

        Raises
        ------
        SpecError, NotFoundError, DataError, StorageError
            See `plan`.
        cluster.PreflightError
            The machine can't hold the cluster that the spec asks for.
        UsageError
            `chaos` can't be read, or not be injected here.
        """
        faults = None if chaos is None else read_chaos(chaos, self.spec)
        require(run_checks(self.spec.cluster))
        compiled, archive = self._compile(progress)
        folder = RunFolder.create(compiled.plan.runs, compiled, None if archive is None else archive.data, faults)
        submit_attempt(folder)
        return RunHandle(compiled.plan.runs, folder.run_id)

    def run(self, *, timeout_s: float | None = None, chaos: str | ChaosSpec | None = None) -> RunRecord:
        """Start a run and wait for its end. Ctrl-C stops it (`start` is for runs that are to go on by themselves).

        Faults to inject are described at `start`; a driver that is killed by them is resumed.

        Raises
        ------
        RunFailedError
            It did not succeed; the message is the cause's, the exit code too.
        DeadlineError
            It has not ended after `timeout_s` seconds, and goes on.
        """
        handle = self.start(chaos=chaos)
        try:
            record = handle.wait(timeout_s)
            if resumes_by_itself(record):
                record = handle.resume().wait(timeout_s)
        except KeyboardInterrupt as interrupt:
            handle.cancel()
            interrupt.add_note(f"the run was stopped; go on with: mutirao run resume {handle.run_id}")
            raise
        if record.error is not None:
            remedy = f"Look closer: mutirao run show {record.run_id} --logs"
            raise RunFailedError(str(record.error["message"]), on=record.run_id, remedy=remedy).with_exit_code(
                record.exit_code
            )
        return record

    def _compile(self, progress: FooterProgress | None) -> tuple[Compiled, CodeArchive | None]:
        places = find_places(self.spec.runs, self.spec.registry)
        if not self.spec.code:
            return compile_plan(self.spec, places, progress=progress), None
        archive = pack_code(self.spec.code)
        with activate_code(archive):
            load_spec(self.spec)  # once more: only here can the user's own classes and their parameters be checked
            return compile_plan(self.spec, places, code=archive.digest, progress=progress), archive
