"""The process that owns a run: ``python -m pipelines.run.driver RUNS RUN_ID ATTEMPT``.

It opens the plan, starts the cluster when a stage first needs it, executes the stages whose results
are not there, and says in the journal what happens. SIGTERM, SIGINT and a stop marker on the store make it save the
training's state and leave; whatever ends it, the cluster ends with it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from cluster import ClusterError, CodeArchive, activate_code, connect, install_code
from pipelines.errors import InterruptedRunError, MutiraoError, StorageError, UsageError
from pipelines.plan import Plan, compile_plan
from pipelines.plan.cache import StageCache, StageResult
from pipelines.plan.value import PlannedStage
from pipelines.run.chaos import announced, concluded, faults_left
from pipelines.run.custom import run_custom
from pipelines.run.folder import HEARTBEAT_S, Attempt, RunFolder
from pipelines.run.journal import JournalWriter, ProgressBoard, read_progress
from pipelines.run.publish import run_publish
from pipelines.run.record import RunRecord
from pipelines.run.stages import TRIALS, Work, run_evaluate, run_features, run_split, run_train
from pipelines.run.training_log import TrainingLog
from pipelines.spec import Places, load_spec
from pipelines.training.gang import Strikes

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_SAME_REQUEST_S = 5.0
_PUBLISH_S = 0.5

_CACHED: dict[str, Callable[[Work], tuple[dict[str, bytes], dict[str, Any]]]] = {
    "split": run_split,
    "features": run_features,
    "train": run_train,
    "evaluate": run_evaluate,
}


def drive(runs: str, run_id: str, number: int) -> int:
    """Work on a run's attempt `number`, which was claimed for this process, until it ends; returns the exit code."""
    folder = RunFolder.open(runs, run_id)
    attempt = folder.attempt()
    if attempt is None or attempt.number != number:
        raise UsageError("another driver works on this run", on=run_id, remedy="Attach to it, or cancel it first.")
    interrupt = _Interrupt()
    with interrupt.handled():
        journal = JournalWriter(folder.store, folder.path)
        board = ProgressBoard(folder.store, folder.path, number)
        journal.append("attempt", number=number, pid=os.getpid())
        with _alive(folder, attempt, board, interrupt):
            code, end = _attempt(folder, number, journal, board, interrupt)
            journal.append("end", attempt=number, exit_code=code, **end)
            journal.flush()
            folder.save_record(folder.record())
    return code


def _attempt(
    folder: RunFolder, number: int, journal: JournalWriter, board: ProgressBoard, interrupt: _Interrupt
) -> tuple[int, dict[str, Any]]:
    try:
        with interrupt.heard():
            _execute(folder, number, journal, board, interrupt)
    except (MutiraoError, ClusterError) as error:
        logger.error("%s: %s", type(error).__name__, error)
        return error.exit_code, {"type": type(error).__name__, "message": str(error)}
    except KeyboardInterrupt:
        return 130, {"type": "KeyboardInterrupt", "message": "interrupted"}
    except Exception as error:
        logger.exception("unforeseen")
        message = f"unforeseen {type(error).__name__}: {error}"
        return 5, {"type": type(error).__name__, "message": message, "trace": traceback.format_exc()}
    return 0, {}


def _execute(
    folder: RunFolder, number: int, journal: JournalWriter, board: ProgressBoard, interrupt: _Interrupt
) -> None:
    plan, manifest, code, chaos = folder.plan(), folder.manifest(), folder.code(), folder.chaos()
    before = folder.record()
    last = {event.stage: event for event in read_progress(folder.store, folder.path, number - 1)}
    log = TrainingLog(journal, number, last.get("train"))
    with ExitStack() as stack:
        archive = None if code is None else CodeArchive.from_bytes(code)
        if archive is not None:
            stack.enter_context(activate_code(archive))
        spec = load_spec(dict(plan.spec))
        manifest.check_unchanged()
        again = compile_plan(spec, Places(plan.runs, plan.registry), code=plan.code_digest, manifest=manifest)
        compiled = replace(again, plan=replace(again.plan, git=plan.git))

        def start_cluster() -> Client:
            started = time.monotonic()
            cluster = stack.enter_context(connect(spec.cluster))
            if archive is not None:
                install_code(cluster.client, archive)
            seconds = time.monotonic() - started
            journal.append("cluster", dashboard=cluster.dashboard_link, workers=spec.cluster.workers, seconds=seconds)
            return cluster.client

        work = Work(
            compiled=compiled,
            folder=folder,
            cache=StageCache(folder.store),
            client=_once(start_cluster),
            report=board.post,
            stop=interrupt.event,
            log=log,
            strikes=None if chaos is None else Strikes(faults_left(chaos, before), log.struck),
            on_trials=lambda trials, best: journal.append("trials", "train", trials=trials, best=best),
        )
        if chaos is not None and before.training is None:
            text, plain = announced(chaos)
            log.append("chaos", text, plain, notice=True)
        for skipped in plan.data.skipped:
            journal.append("notice", text=f"skipped {skipped}")
        results = _results_so_far(before, compiled.plan)
        for stage in compiled.plan.stages:
            if chaos is not None and stage.name == "train" and not _is_done(before, "train"):
                stage = replace(stage, cached=False, why="faults are injected into it")
            with interrupt.gentle(stage.name == "train"):
                _run_stage(work, stage, journal, results)


def _is_done(record: RunRecord, name: str) -> bool:
    stage = record.stage(name)
    return stage is not None and stage.status in ("done", "cached")


def _results_so_far(record: RunRecord, plan: Plan) -> dict[str, Any]:
    """What the custom stages have returned that earlier attempts of this run have called: they are not called again."""
    own = {stage.name for stage in plan.stages} - {*_CACHED, "publish"}
    done = (stage for stage in record.stages if stage.name in own and _is_done(record, stage.name))
    return {stage.name: stage.summary.get("result") for stage in done}


def _run_stage(work: Work, stage: PlannedStage, journal: JournalWriter, results: dict[str, Any]) -> None:
    if stage.name in results:
        why, summary = "an earlier attempt has called it", {"result": results[stage.name]}
        journal.append("stage", stage.name, status="cached", summary=summary, why=why)
        return
    if stage.cached:
        found = work.result(stage.name)
        work.cache.remember(work.compiled.plan.pipeline, stage.stage_key)
        results[stage.name] = found.summary.get("result")
        if TRIALS in found.files:
            journal.append("trials", stage.name, trials=json.loads(work.read(stage.name, TRIALS)), best=None)
        journal.append("stage", stage.name, status="cached", summary=dict(found.summary), why=stage.why)
        _warn(journal, found.summary)
        return
    journal.append("stage", stage.name, status="running", why=stage.why)
    started = time.monotonic()
    try:
        summary = _compute(work, stage, journal, results)
    except BaseException as error:
        status = "interrupted" if isinstance(error, InterruptedRunError | KeyboardInterrupt) else "failed"
        journal.append("stage", stage.name, status=status, seconds=time.monotonic() - started)
        raise
    journal.append("stage", stage.name, status="done", summary=summary, seconds=time.monotonic() - started)
    _warn(journal, summary)


def _warn(journal: JournalWriter, summary: Mapping[str, Any]) -> None:
    """Say that a training ended without a minimum: its model is published all the same."""
    if summary.get("stop_reason") == "unbounded":
        names = list(summary["unbounded"])
        of = f" of {', '.join(names[:5])}{' …' if len(names) > 5 else ''}" if names else ""
        journal.append(
            "notice",
            text=f"the objective has no minimum: the weights{of} grow for ever, as the label can be told from the "
            "features without an error there; they were left where the gradient had vanished. Give the training an l2",
        )
    if summary.get("converged") is False and summary.get("stop_reason") in ("max_iter", "precision"):
        journal.append(
            "notice",
            text=f"the training stopped ({summary['stop_reason']}) after {summary['n_iter']} steps before it met its "
            f"tolerance, with a residual of {summary['residual']:.2g}; scale the features, or leave solver and "
            "max_iter to their defaults",
        )


def _compute(work: Work, stage: PlannedStage, journal: JournalWriter, results: dict[str, Any]) -> dict[str, Any]:
    pipeline = work.compiled.plan.pipeline
    if stage.name == "publish":
        return run_publish(work, lambda text: journal.append("notice", text=text))
    if stage.name in _CACHED:
        usual = work.cache.lookup(stage.stage_key) if stage.name == "train" else None
        files, summary = _CACHED[stage.name](work)
        if stage.name == "train":
            _conclude_chaos(work, summary, usual)
        committed = work.cache.commit(pipeline, stage.stage_key, files, summary)
        if stage.name == "train":
            work.folder.drop_checkpoints()
        return dict(committed.summary)
    results[stage.name] = run_custom(work, stage, results)
    summary = {"result": results[stage.name]}
    if any(config.name == stage.name and config.cache for config in work.compiled.spec.stages):
        work.cache.commit(pipeline, stage.stage_key, {}, summary)
    return summary


def _conclude_chaos(work: Work, summary: Mapping[str, Any], usual: StageResult | None) -> None:
    chaos, training = work.folder.chaos(), work.folder.record().training
    if chaos is not None and training is not None:
        earlier = usual.summary.get("certificate") if usual else None
        text, plain = concluded(chaos, training, summary.get("certificate"), earlier)
        work.log.append("chaos", text, plain, notice=True)


def _once(make: Callable[[], Client]) -> Callable[[], Client]:
    made: list[Client] = []

    def get() -> Client:
        if not made:
            made.append(make())
        return made[0]

    return get


class _Interrupt:
    """Signals and the stop marker turned into an event or an exception.

    In a gentle stretch (training) the first signal only sets the event, and the training leaves by itself once its
    state is saved; elsewhere the main thread gets an `InterruptedRunError`. A second signal more than a moment after
    the first means it: the same request may come as a signal and as a marker. Where nothing can be interrupted yet, or
    any more, a signal is remembered.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._gentle, self._hears = False, False
        self._first = 0.0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT inside, in the main thread; they are ignored afterwards."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Let requests interrupt the main thread inside; one that came before does at once."""
        self._hears = True
        try:
            if self.event.is_set():
                raise _interrupted()
            yield
        finally:
            self._hears = False

    @contextmanager
    def gentle(self, really: bool) -> Iterator[None]:
        """Let a stage end by itself when it is asked to stop."""
        self._gentle = really
        try:
            yield
        finally:
            self._gentle = False
        if self.event.is_set():
            raise _interrupted()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        again = self.event.is_set() and now - self._first > _SAME_REQUEST_S
        if not self.event.is_set():
            self._first = now
            self.event.set()
            again = not self._gentle
        if again and self._hears:
            raise _interrupted()


def _interrupted() -> InterruptedRunError:
    return InterruptedRunError("the run was stopped", remedy="`mutirao run resume` goes on where it was.")


@contextmanager
def _alive(folder: RunFolder, attempt: Attempt, board: ProgressBoard, interrupt: _Interrupt) -> Iterator[None]:
    """Give signs of life, publish the progress, and look for the stop marker, in a thread of its own."""
    done = threading.Event()

    def beat() -> None:
        last = time.monotonic()
        while not done.wait(_PUBLISH_S):
            try:
                board.publish()
                if time.monotonic() - last < HEARTBEAT_S:
                    continue
                last = time.monotonic()
                folder.heartbeat(attempt)
                if not interrupt.event.is_set() and folder.asked_to_stop(attempt):
                    os.kill(os.getpid(), signal.SIGTERM)
            except StorageError as error:
                logger.warning("no sign of life could be given: %s", error)

    folder.heartbeat(attempt)
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=60)
        folder.heartbeat(attempt, ended=True)


def main() -> None:
    """Run the driver named on the command line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    runs, run_id, attempt = sys.argv[1:]
    sys.exit(drive(runs, run_id, int(attempt)))


if __name__ == "__main__":
    main()
