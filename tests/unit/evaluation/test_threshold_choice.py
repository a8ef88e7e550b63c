"""A threshold is the best of all there are, found in one pass, whatever the chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import GateNotMetError
from pipelines.evaluation.config import ThresholdRule, parse_threshold
from pipelines.evaluation.groups import Groups, as_groups, group_rows
from pipelines.evaluation.thresholds import choose_threshold


def worth(rule, y, yes, w):
    hit, said, positive, negative = w[y & yes].sum(), w[yes].sum(), w[y].sum(), w[~y].sum()
    precision, recall = (hit / said if said else 0), hit / positive
    match rule.objective:
        case "f1":
            return 2 * hit / (said + positive)
        case "youden":
            return recall - (said - hit) / negative
        case "accuracy":
            return (hit + negative - (said - hit)) / w.sum()
        case "precision":
            return recall if precision >= rule.number - 1e-12 else -1
        case _:
            return precision if recall >= rule.number - 1e-12 else -1


@given(
    st.integers(0, 10_000), st.integers(2, 80), st.sampled_from([1, 15]), st.booleans(), st.integers(1, 6),
    st.sampled_from(["f1", "youden", "accuracy", "precision>=0.5", "recall>=0.8"]),
)  # fmt: skip
@settings(max_examples=80)
def test_no_other_threshold_is_better(seed, n, digits, weighted, pieces, text):
    rng = np.random.default_rng(seed)
    scores, y = rng.random(n).round(digits), rng.random(n) < 0.5
    y[:2] = [True, False]
    w = rng.integers(1, 9, n) / 4 if weighted else np.ones(n)
    whole, rule = as_groups(*group_rows(scores, y, w if weighted else None)), parse_threshold(text)
    cuts = [c for c in np.array_split(np.arange(len(whole)), pieces) if len(c)]
    best = max(worth(rule, y, scores >= t, w) for t in set(scores.tolist()))
    stream = [Groups(whole.scores[c], whole.positive[c], whole.negative[c]) for c in cuts]
    asked = {"positive": w[y].sum(), "negative": w[~y].sum()}
    if best == -1:
        with pytest.raises(GateNotMetError, match="no threshold"):
            choose_threshold(rule, stream, **asked)
        return
    found = choose_threshold(rule, stream, **asked)
    yes = scores >= found.threshold
    assert worth(rule, y, yes, w) == pytest.approx(best, abs=1e-12)
    assert found.hits == pytest.approx(w[yes & y].sum())
    assert found.false_alarms == pytest.approx(w[yes & ~y].sum())


def test_it_lies_halfway_to_the_next_score_across_chunks():
    stream = [
        Groups(np.array([0.8]), np.array([5]), np.array([0])),
        Groups(np.array([0.4]), np.array([0]), np.array([5])),
    ]
    found = choose_threshold(ThresholdRule("f1"), stream, positive=5, negative=5)
    assert found.threshold == pytest.approx(0.6)


def test_scores_that_calibration_made_equal_are_decided_together():
    # Alone, the first chunk would be the better end.
    stream = [
        Groups(np.array([s]), np.array([p]), np.array([n])) for s, p, n in [(0.7, 5, 0), (0.7, 0, 9), (0.2, 1, 1)]
    ]
    found = choose_threshold(ThresholdRule("f1"), stream, positive=6, negative=10)
    assert (found.hits, found.false_alarms) in [(5, 9), (6, 10)]


def test_a_floor_that_nothing_keeps_is_named_with_what_is_there():
    stream = [Groups(np.array([0.7, 0.2]), np.array([1, 5]), np.array([1, 5]))]
    with pytest.raises(GateNotMetError) as caught:
        choose_threshold(ThresholdRule("precision", 0.9), stream, positive=6, negative=6, on="validation")
    assert "0.9" in str(caught.value)
    assert "0.5 at most" in str(caught.value)


def test_neighbouring_floats_have_nothing_between_them():
    high = np.nextafter(0.5, 1)
    stream = [Groups(np.array([high, 0.5]), np.array([3, 0]), np.array([0, 3]))]
    assert choose_threshold(ThresholdRule("f1"), stream, positive=3, negative=3).threshold == high
