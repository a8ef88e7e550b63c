"""What does `--chaos` mean for a run: where it is possible, what is left of it after a resumption, what came of it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pipelines.errors import UsageError
from pipelines.run.record import RunRecord
from pipelines.run.training_record import TrainingRecord
from pipelines.spec import PipelineSpec
from pipelines.training.estimators.registry import SurvivesLosses, resolve
from pipelines.training.gang.chaos import ChaosSpec, Fault, parse_chaos, plan_faults, told
from pipelines.training.happenings import steps_told


def read_chaos(chaos: str | ChaosSpec, spec: PipelineSpec) -> ChaosSpec:
    """Read what faults are to be injected, and refuse where that can't or must not be done.

    Raises
    ------
    UsageError
        The text can't be read; the cluster is not a local one; the estimator's training does not survive losses;
        the spec has a search.
    """
    if spec.cluster.backend != "local":
        raise UsageError(
            "faults are injected into local clusters only, which nobody else works on",
            on="--chaos",
            expected="cluster.backend: local",
            found=spec.cluster.backend,
            remedy="Try the same spec with a local cluster.",
        )
    if not isinstance(resolve(spec.train.estimator), SurvivesLosses):
        raise UsageError(
            "a training that does not go on after a loss can't survive faults",
            on="--chaos",
            expected="an estimator that does: logistic_regression or linear_regression",
            found=spec.train.estimator,
            remedy="Leave out --chaos.",
        )
    if spec.train.tune is not None:
        raise UsageError(
            "faults are injected into one training, and a search has many",
            on="--chaos",
            expected="a spec without train.tune",
            found=f"a search of {spec.train.tune.most} trials",
            remedy="Leave out --chaos, or train with parameters that a search has found.",
        )
    return parse_chaos(chaos) if isinstance(chaos, str) else chaos


def announced(chaos: ChaosSpec) -> tuple[str, dict[str, Any]]:
    """Tell a plan of faults before it begins: a text, and the same as plain values."""
    faults = plan_faults(chaos)
    lines = "".join(f"\n    {line}" for line in told(faults))
    plain = {"spec": str(chaos), "faults": [{**asdict(fault), "text": str(fault)} for fault in faults]}
    return f"chaos ({chaos}) will strike the training:{lines}", plain


def faults_left(chaos: ChaosSpec, record: RunRecord) -> list[Fault]:
    """Return the faults that have not struck in earlier attempts of the run."""
    struck = {fault["number"] for fault in record.training.faults} if record.training else set()
    return [fault for fault in plan_faults(chaos) if fault.number not in struck]


def resumes_by_itself(record: RunRecord) -> bool:
    """Whether a run has ended because chaos killed its driver, so that whoever follows it resumes it."""
    faults = record.training.faults if record.training else ()
    lost = record.error is not None and record.error["type"] == "DriverLost"
    return lost and bool(faults) and faults[-1]["harm"] == "driver" and faults[-1]["attempt"] == record.attempts


def concluded(
    chaos: ChaosSpec, training: TrainingRecord, certificate: Mapping[str, Any] | None, usual: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Sum up at the end of the training: what struck, what it cost, what did not strike, and which bits came out.

    Parameters
    ----------
    certificate, usual : mapping, optional
        Of this training, and of an earlier one of the same spec, data and code.
    """
    planned = plan_faults(chaos)
    struck = [fault["number"] for fault in training.faults]
    missed = [fault for fault in planned if fault.number not in struck]
    steps = training.steps_again + sum(each["steps"] for each in training.interruptions)
    seconds = training.waited_s + training.lost_s + sum(each["seconds"] for each in training.interruptions)
    same = _same_bits(certificate, usual)
    text = (
        f"chaos: {len(struck)} of {len(planned)} faults struck, all were survived; {steps_told(steps)} done again, "
        f"{seconds:.1f} s lost to waiting and to work done again"
    )
    if missed:
        names = ", ".join(str(fault) for fault in missed)
        text += f"; {len(missed)} could not be injected because the training ended sooner ({names})"
    text += f"; {_bits_told(certificate, same)}"
    final = certificate["final"] if certificate else None
    conclusion = {"struck": struck, "missed": [fault.number for fault in missed], "steps": steps, "seconds": seconds}
    return text, {"conclusion": {**conclusion, "final": final, "same_bits": same}}


def _same_bits(certificate: Mapping[str, Any] | None, usual: Mapping[str, Any] | None) -> bool | None:
    if not certificate or not usual or certificate["of"] != usual["of"]:
        return None
    return bool(certificate["final"] == usual["final"])


def _bits_told(certificate: Mapping[str, Any] | None, same: bool | None) -> str:
    if not certificate:
        return "this training has no certificate of its bits"
    weights = f"the weights ({certificate['final'][:16]}…)"
    if same is None:
        doubt = (
            f"; the certificate is broken: {'; '.join(certificate['broken_by'])}" if certificate["broken_by"] else ""
        )
        return f"{weights} are certified for {certificate['equal_for']}{doubt}"
    return f"{weights} are {'to the bit' if same else 'NOT'} those of the undisturbed training in the cache"
