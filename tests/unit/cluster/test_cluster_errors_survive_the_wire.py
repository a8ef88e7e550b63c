"""Every error of the cluster is itself again after pickling, and says what, where, expected, found and what to do."""

from __future__ import annotations

import pickle

import pytest

from cluster import errors

PLAIN = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.ClusterError) and each is not errors.ClusterSpecError
]


@pytest.mark.parametrize("kind", PLAIN)
def test_pickling_keeps_kind_fields_and_text(kind: type[errors.ClusterError]) -> None:
    error = kind("it failed", on="worker 3", expected="2", found="1", remedy="Try.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == "worker 3: it failed; expected 2; found 1. Try."


def test_exit_codes_say_what_to_do_next() -> None:
    codes = {kind.__name__: kind.exit_code for kind in PLAIN}
    assert codes == {
        "ClusterError": 5,
        "ClusterUsageError": 2,
        "CodeError": 2,
        "PreflightError": 3,
        "ClusterDeadlineError": 5,
        "ClusterLostError": 5,
        "JobError": 5,
        "ClusterPreemptedError": 6,
    }
