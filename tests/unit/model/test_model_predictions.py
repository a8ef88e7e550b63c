"""What does a model predict, and does a row's prediction hang on nothing but the row?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from pipelines.errors import DataError, UsageError

EXACT = ["linear binary", "linear sparse", "linear multiclass", "linear regression"]
EXACT += ["xgboost binary", "xgboost multiclass", "xgboost regression"]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(0, 700), max_size=6), seed=st.integers(0, 5))
def test_predictions_are_bit_equal_however_rows_are_batched(models, make, name, cuts, seed):
    model, table = models[name], make.rows(700, seed)
    edges = [0, *sorted(cuts), 700]
    parts = [model.scores(table.slice(a, b - a)) for a, b in pairwise(edges)]
    assert np.concatenate(parts).tobytes() == model.scores(table).tobytes()


def test_a_table_longer_than_one_block_is_scored_in_blocks_without_a_trace(make):
    model, table = make.linear(), make.rows(70_000)
    assert model.scores(table).tobytes() == model.scores_of_matrix(model.features.transform(table)).tobytes()


def test_foreign_predictions_agree_over_batches_to_rounding(models, make):
    model, table = models["skops binary"], make.rows(500)
    one_by_one = np.concatenate([model.scores(table.slice(i, 1)) for i in range(500)])
    # BLAS may add in another order for another shape: a few units in the last place of float32, before the sigmoid
    np.testing.assert_allclose(one_by_one, model.scores(table), rtol=1e-5)


@pytest.mark.parametrize(("name", "link"), [
    ("linear binary", lambda margins: expit(margins[:, 0])),
    ("linear sparse", lambda margins: expit(margins[:, 0])),
    ("linear multiclass", lambda margins: softmax(margins, axis=1)),
    ("linear regression", lambda margins: margins[:, 0]),
])  # fmt: skip
def test_linear_scores_are_the_closed_form(models, make, name, link):
    model, table = models[name], make.rows(1000)
    matrix = model.features.transform(table)
    dense = np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix, np.float64)
    margins = dense @ model.predictor.coef.T + model.predictor.intercept
    # six products of order one, added in two orders
    np.testing.assert_allclose(model.scores(table), link(margins), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["xgboost binary", "xgboost multiclass", "xgboost regression"])
def test_xgboost_scores_are_what_xgboost_predicts(models, make, name):
    import xgboost as xgb

    model, table = models[name], make.rows(1000)
    booster = xgb.Booster(model_file=bytearray(model.predictor.files()["model.ubj"]))
    matrix = xgb.DMatrix(
        model.features.transform(table), feature_types=list(model.features.types), enable_categorical=True
    )
    np.testing.assert_array_equal(model.scores(table), booster.predict(matrix).astype(np.float64))


def test_every_model_predicts_in_its_signature(model, make):
    table = make.rows(200)
    predicted = model.predict(table)
    assert predicted.schema == model.signature_out
    assert predicted.num_rows == 200
    assert model.predict(table.slice(0, 0)).schema == model.signature_out
    assert model.signature_in == table.schema


def test_several_classes_get_a_probability_each_and_the_likeliest_is_predicted(models, make):
    predicted = models["xgboost multiclass"].predict(make.rows(300))
    assert predicted.schema.names == ["prediction", "probability_early", "probability_late", "probability_on time"]
    probabilities = np.stack([predicted[name].to_numpy() for name in predicted.schema.names[1:]], axis=1)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    labels = np.array(["early", "late", "on time"])[probabilities.argmax(axis=1)]
    assert predicted["prediction"].to_pylist() == labels.tolist()


def test_the_threshold_decides_and_half_is_the_default(models, make):
    model, table = models["xgboost binary"], make.rows(300)
    probability = model.scores(table)
    assert model.predict(table)["prediction"].to_pylist() == (probability >= 0.5).tolist()
    strict = model.with_threshold(0.9)
    assert strict.predict(table)["prediction"].to_pylist() == (probability >= 0.9).tolist()
    assert strict.predict(table)["probability"].to_pylist() == probability.tolist()


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_is_a_probability(models, threshold):
    with pytest.raises(UsageError, match="threshold"):
        models["linear binary"].with_threshold(threshold)


def test_only_binary_models_have_a_threshold(models):
    with pytest.raises(UsageError, match="only a binary model"):
        models["linear regression"].with_threshold(0.5)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_a_score_that_is_not_a_number_is_predicted_as_null(make, kind):
    model = make.linear(kind, fill=None)  # missing numbers stay NaN
    table = pa.table(
        [pa.array([None, 10.0]), pa.array([1, 1], pa.int32()), pa.array(["AA", "AA"])], schema=model.signature_in
    )
    predicted = model.predict(table)
    for column in predicted.columns:
        assert column.is_null().to_pylist() == [True, False]


def test_a_missing_column_is_named_with_the_nearest_that_is_there(model, make):
    table = make.rows(3).rename_columns(["distance", "delays", "carrier"])
    with pytest.raises(DataError, match=r"(?s)lacks columns.*: delay;.*delays"):
        model.predict(table)


def test_other_columns_and_another_order_do_not_matter(model, make):
    table = make.rows(50)
    moved = table.append_column("id", pa.array(range(50))).select(["id", "carrier", "delay", "distance"])
    assert model.predict(moved).equals(model.predict(table))


def test_many_threads_predict_the_same(model, make):
    table = make.rows(400)
    expected = model.scores(table)
    with ThreadPoolExecutor(8) as pool:
        for scores in pool.map(lambda _: model.scores(table), range(40)):
            np.testing.assert_array_equal(scores, expected)


def test_importance_ranks_what_the_model_uses(models):
    gains = dict(models["xgboost binary"].importance())
    assert gains["delay"] > gains["distance"]  # the labels hang on delay and carrier only
    linear = models["linear binary"]
    expected = np.abs(linear.predictor.coef[0] * linear.predictor.std)
    assert dict(linear.importance()) == pytest.approx(dict(zip(linear.features.names, expected, strict=True)))
    assert [value for _, value in linear.importance()] == sorted(expected, reverse=True)


def test_a_description_is_plain_json(model):
    import json

    told = json.loads(json.dumps(model.describe()))
    assert told["kind"] == model.kind
    assert told["inputs"] == {"distance": "double", "delay": "int32", "carrier": "string"}
