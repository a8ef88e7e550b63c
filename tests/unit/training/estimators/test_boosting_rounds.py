"""Does early stopping pick the round that XGBoost's own would, and does its state survive a checkpoint?"""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import CorruptArtifactError, TrainingError
from pipelines.training.estimators.boosting_rounds import Rounds

scores = st.lists(st.floats(0, 1, width=16), min_size=1, max_size=40)


def play(series: list[float], metric: str, patience: int | None) -> Rounds:
    """Boost as long as there are scores and patience."""
    rounds = Rounds(patience)
    for score in series:
        if rounds.exhausted:
            break
        rounds.add(f"[{rounds.done}]\tvalidation-{metric}:{score!r}")
    return rounds


@given(scores, st.integers(1, 8), st.sampled_from(["auc", "logloss"]))
def test_early_stopping_is_xgboosts(series, patience, metric):
    callback = xgb.callback.EarlyStopping(rounds=patience, metric_name=metric, data_name="validation", maximize=None)
    model = _Stub()
    callback.before_training(model)
    log = {"validation": {metric: []}}
    done = 0
    for score in series:
        log["validation"][metric].append(score)
        stop = callback.after_iteration(model, done, log)
        done += 1
        if stop:
            break
    rounds = play(series, metric, patience)
    assert rounds.done == done
    assert rounds.best_round == int(model.attributes["best_iteration"])
    assert rounds.used == rounds.best_round + 1


class _Stub:
    """What the callback asks of a booster."""

    best_iteration = 0

    def __init__(self) -> None:
        self.attributes: dict[str, str] = {}

    def num_boosted_rounds(self) -> int:
        return 0

    def set_attr(self, **attributes: str) -> None:
        self.attributes |= {name: str(value) for name, value in attributes.items()}

    def attr(self, name: str) -> str | None:
        return self.attributes.get(name)


@given(scores, st.integers(1, 5), st.integers(0, 40))
def test_a_checkpoint_anywhere_changes_nothing(series, patience, cut):
    whole = play(series, "auc", patience)
    before = play(series[: min(cut, len(series))], "auc", patience)
    again, model = Rounds.unpack(before.pack(b"trees"), patience)
    assert (again, model) == (before, b"trees")
    for score in series[again.done :]:
        if again.exhausted:
            break
        again.add(f"[{again.done}]\tvalidation-auc:{score!r}")
    assert again == whole


def test_the_last_metric_on_the_last_split_decides():
    rounds = Rounds(5)
    rounds.add("[0]\ttrain-auc:0.9\ttrain-logloss:0.5\tvalidation-auc:0.6\tvalidation-logloss:0.7")
    values = rounds.add("[1]\ttrain-auc:0.8\ttrain-logloss:0.6\tvalidation-auc:0.5\tvalidation-logloss:0.6")
    assert (rounds.best_round, rounds.best_score) == (1, 0.6)
    assert values["validation-auc"] == 0.5
    assert rounds.history["train"]["auc"] == [0.9, 0.8]


def test_metrics_with_parameters_are_judged_by_their_name():
    rounds = play([0.3, 0.2], "error@0.7", None)
    assert rounds.best_round == 1
    assert play([0.3, 0.2], "aucpr", None).best_round == 0


def test_without_patience_all_rounds_are_used():
    assert play([0.9, 0.1, 0.1], "auc", None).used == 3


def test_without_splits_to_measure_rounds_are_counted():
    rounds = Rounds(None)
    assert rounds.add("") == {}
    assert (rounds.done, rounds.used, rounds.best_round) == (1, 1, None)


def test_an_undefined_metric_can_not_stop_training_early():
    with pytest.raises(TrainingError, match=r"auc is nan on validation in round 0.*rows of every class"):
        play([float("nan")], "auc", 3)
    rounds = play([float("nan"), 0.5], "auc", None)
    assert rounds.history == {"validation": {"auc": [None, 0.5]}}
    assert np.isfinite(rounds.best_score or np.nan)


@pytest.mark.parametrize("payload", [b"", b"something else", Rounds(3).pack(b"")[:12]])
def test_a_damaged_checkpoint_is_told(payload):
    with pytest.raises(CorruptArtifactError, match="checkpoint"):
        Rounds.unpack(payload, 3)
