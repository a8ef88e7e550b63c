"""Does XGBoost bin by the borders that the ranks agree on, are these the same for any dealing, and are they good?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.rows import RowIds
from pipelines.features.quantiles import SampleRule
from pipelines.training.estimators.boosting_cuts import ROWS, CutSample, borders, reference, sample_rule


def rows(count: int, seed: int = 0) -> np.ndarray:
    """A skewed number, a number with few values, one with nulls, a category, a flag that is hardly ever set."""
    random = np.random.default_rng(seed)
    X = np.empty((count, 5), np.float32, order="F")
    X[:, 0] = random.lognormal(sigma=2, size=count)
    X[:, 1] = random.integers(0, 20, count)
    X[:, 2] = np.where(random.random(count) < 0.5, np.nan, random.normal(size=count))
    X[:, 3] = random.integers(0, 9, count)
    X[:, 4] = 0
    X[count // 2, 4] = 1
    return X


TYPES = ["q", "q", "q", "c", "q"]


def sampled(X: np.ndarray, rule: SampleRule, places: np.ndarray) -> CutSample:
    sample = CutSample(rule, TYPES)
    for some in np.array_split(places, 3):
        if len(some):
            sample.update(RowIds("a", 0, some, 0), X[some], None)
    return sample


def test_borders_do_not_hang_on_how_rows_are_dealt(mesh: Any) -> None:
    X = rows(20_000)
    rule = SampleRule.of(500, len(X))

    def agreed(*dealt: np.ndarray) -> list[list[np.ndarray]]:
        found: list[list[np.ndarray]] = mesh.run(
            [lambda each, places=places: sampled(X, rule, places).cuts(each, 64) for places in dealt]
        )
        return found

    everything = np.arange(len(X))
    (one,) = agreed(everything)
    for dealt in (np.array_split(everything, 2), [everything[:0], *np.array_split(everything, [17])]):
        for cuts in agreed(*dealt):
            assert [each.tolist() for each in cuts] == [each.tolist() for each in one]


def test_xgboost_takes_the_borders_over(mesh: Any) -> None:
    X = rows(20_000)
    (cuts,) = mesh.run([lambda each: sampled(X, SampleRule.of(ROWS, len(X)), np.arange(len(X))).cuts(each, 64)])
    made = reference(cuts, TYPES, 64)
    y = np.zeros(len(X))
    matrix = xgb.QuantileDMatrix(X, y, ref=made, max_bin=64, feature_types=TYPES, enable_categorical=True)
    starts, values = matrix.get_quantile_cut()
    for at in range(5):
        found = values[starts[at] : starts[at + 1]]
        # XGBoost brackets the values by one below and one above, but for categories.
        assert found[1:-1].tolist() == cuts[at][1:].tolist() if at != 3 else np.isin(cuts[3], found).all()
    assert len(cuts[1]) == 20
    assert cuts[3].tolist() == list(range(9))
    assert cuts[4].tolist() == [0, 1], "a value that no sample would hold has its bin all the same"


def test_nothing_but_missing_values_has_no_borders() -> None:
    assert len(borders(np.full(3, np.nan, np.float32), np.ones(3, np.float32), np.nan, np.nan, 256)) == 0
    assert reference([np.empty(0, np.float32)], ["q"], 256) is None


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=400), st.integers(2, 32), st.integers(0, 3))
@settings(max_examples=200)
def test_bins_weigh_about_the_same(values: list[float], max_bin: int, heavy: int) -> None:
    sample = np.array(values, np.float32)
    weight = np.ones(len(sample), np.float32)
    weight[::3] = heavy
    found = borders(sample, weight, sample.min(), sample.max(), max_bin)
    assert 1 <= len(found) <= max_bin
    assert (np.diff(found) > 0).all()
    assert found[0] == sample.min()
    bins = np.searchsorted(found, sample, side="right") - 1
    assert (bins >= 0).all()
    if weight.any() and len(np.unique(sample[weight > 0])) > max_bin:
        # No bin of several values weighs more than twice its share, rounding and the range's two ends aside.
        several = [np.unique(sample[(bins == at) & (weight > 0)]).size > 1 for at in range(len(found))]
        shares = np.bincount(bins, weight, len(found)) / weight.sum()
        assert shares[several].max(initial=0) <= 2 / max_bin + 4 / weight.sum()


def test_a_value_goes_with_a_light_neighbour_rather_than_with_a_heavy_one() -> None:
    sample = np.array([0.0] * 9 + [2, 3, 4, 5, 1], np.float32)
    weight = np.array([2, 1, 1] * 4 + [2, 1], np.float32)
    assert borders(sample, weight, 0.0, 5.0, 5).tolist() == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("zeros", [0.5, 0.9, 0.99])
def test_a_frequent_value_does_not_take_the_bins_of_the_others(zeros: float) -> None:
    random = np.random.default_rng(0)
    sample = np.where(random.random(100_000) < zeros, 0, random.lognormal(7, 1.5, 100_000)).astype(np.float32)
    found = borders(sample, np.ones(len(sample), np.float32), sample.min(), sample.max(), 256)
    assert 250 <= len(found) <= 256
    counts = np.bincount(np.searchsorted(found, sample, side="right") - 1)
    assert counts[0] == (sample == 0).sum()
    assert counts[1:].max() <= 2 * (sample > 0).sum() / 255


def test_rows_without_weight_do_not_count() -> None:
    sample = np.arange(10_000, dtype=np.float32)
    weight = np.where(sample < 1000, 1.0, 0.0).astype(np.float32)
    found = borders(sample, weight, 0.0, 9999.0, 100)
    assert (found < 1000).sum() >= 99


@pytest.mark.parametrize("exact", [True, False])
def test_a_sample_has_the_rows_that_it_should(exact: bool) -> None:
    rule = sample_rule(50 * ROWS, 28, exact=exact)
    assert rule.rows == ROWS
    expected = rule.threshold / 2**64 * 50
    assert expected == pytest.approx(1.05 if exact else 4.0, rel=1e-3)
    assert sample_rule(10**9, 4096, exact=True).rows == 4096


@pytest.mark.slow
def test_a_column_that_is_nearly_always_zero_is_learned_as_by_xgboost() -> None:
    random = np.random.default_rng(0)
    rain = np.where(random.random(120_000) < 0.95, 0.0, random.random(120_000)).astype(np.float32)
    X = np.stack([rain, random.normal(size=len(rain)).astype(np.float32)], axis=1)
    y = 2 * X[:, 1] + 30 * np.abs((rain * 20) % 2 - 1) * (rain > 0) + random.normal(size=len(rain)) * 0.1
    learned, ones = slice(80_000), np.ones(80_000, np.float32)
    cuts = [borders(X[learned, at], ones, X[learned, at].min(), X[learned, at].max(), 256) for at in range(2)]
    errors = []
    for ref in (None, reference(cuts, ["q"] * 2, 256)):
        matrix = xgb.QuantileDMatrix(X[learned], y[learned], ref=ref, max_bin=256)
        booster = xgb.train({"max_depth": 6, "learning_rate": 0.3, "nthread": 2}, matrix, 60)
        errors.append(float(np.sqrt(np.mean((booster.inplace_predict(X[80_000:]) - y[80_000:]) ** 2))))
    assert errors[1] <= 1.02 * errors[0]


@pytest.mark.slow
def test_cuts_are_as_good_as_xgboosts_own() -> None:
    """Any other cuts move a model's AUC by 1e-3 up or down (XGBoost's own at 255 bins, too); the mean must not move."""
    differences = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        X = np.asfortranarray(random.normal(size=(300_000, 6)).astype(np.float32))
        X[:, 1] = np.exp(3 * X[:, 1])
        odds = X[:, 0] + np.log(X[:, 1]) / 3 * X[:, 2] - 0.5 * X[:, 3]
        y = (random.random(len(X)) < 1 / (1 + np.exp(-odds))).astype(np.float32)
        learned, test = slice(200_000), xgb.DMatrix(X[200_000:], y[200_000:])
        sample = random.choice(200_000, ROWS // 4, replace=False)
        ones = np.ones(len(sample), np.float32)
        cuts = [borders(X[sample, at], ones, X[learned, at].min(), X[learned, at].max(), 256) for at in range(6)]
        aucs = []
        for ref in (None, reference(cuts, ["q"] * 6, 256)):
            matrix = xgb.QuantileDMatrix(X[learned], y[learned], ref=ref, max_bin=256)
            words = {"objective": "binary:logistic", "max_depth": 6, "nthread": 2, "eval_metric": "auc"}
            aucs.append(float(xgb.train(words, matrix, 40).eval(test).split(":")[1]))
        differences.append(aucs[1] - aucs[0])
    assert abs(np.mean(differences)) < 1e-3
