"""Do the rows of the shards reach XGBoost once each, in order, in blocks, weighted, however small the batches?"""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb
from sklearn.utils.class_weight import compute_class_weight

from pipelines.errors import SpecError
from pipelines.features import Target
from pipelines.training.data import Rows, load_part
from pipelines.training.estimators import boosting_feed
from pipelines.training.estimators.boosting_feed import Feed, Part, kept_blocks
from pipelines.training.estimators.class_weights import class_factors


@pytest.mark.parametrize("block_rows", [64, 700, 131_072])
def test_blocks_hold_every_row_once_in_order_and_only_the_last_is_smaller(data, monkeypatch, block_rows):
    monkeypatch.setattr(boosting_feed, "BLOCK_ROWS", block_rows)
    blocks = kept_blocks(Part(data, "train", None, 1))
    whole = load_part(data, data.shards.shards, "train")
    np.testing.assert_array_equal(np.concatenate([block.X for block in blocks]), whole.X)
    np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), whole.y)
    assert {len(block.y) for block in blocks[:-1]} <= {block_rows}
    assert all(block.X.strides[0] == 4 and block.weight is None for block in blocks)


def test_sparse_rows_pass_as_they_are(workshop):
    data = workshop.data(categorical="one_hot", sparse=True)
    blocks = kept_blocks(Part(data, "train", None, 1))
    whole = load_part(data, data.shards.shards, "train")
    np.testing.assert_array_equal(np.concatenate([block.X.toarray() for block in blocks]), whole.X.toarray())


def test_sample_and_class_weights_multiply(workshop, monkeypatch):
    monkeypatch.setattr(boosting_feed, "BLOCK_ROWS", 333)
    data = workshop.data(weight="weight")
    blocks = kept_blocks(Part(data, "train", np.array([1.0, 3.0]), 1))
    whole = load_part(data, data.shards.shards, "train")
    expected = whole.weight * np.where(whole.y == 1, np.float32(3), np.float32(1))
    np.testing.assert_array_equal(np.concatenate([block.weight for block in blocks]), expected)


def test_an_iterator_counts_its_passes_and_rows(data):
    seen = []
    blocks = kept_blocks(Part(data, "train", None, 1))
    feed = Feed(lambda: iter(blocks), data.features.types, on_rows=lambda rows, passed: seen.append((rows, passed)))
    matrix = xgb.QuantileDMatrix(feed, enable_categorical=True)
    assert matrix.num_row() == data.rows["train"]
    assert feed.passes > 1, "XGBoost goes through the rows several times: that is why they are kept"
    assert seen[-1] == (data.rows["train"], feed.passes)


@pytest.mark.parametrize("sparse", [False, True])
def test_no_rows_make_an_empty_block(sparse):
    feed = Feed(lambda: iter(()), ["q", "q", "q"], sparse=sparse)
    given = []
    assert feed.next(lambda **words: given.append(words))
    assert not feed.next(lambda **words: given.append(words))
    assert given[0]["data"].shape == (0, 3)


def test_bins_do_not_depend_on_reading_again(data):
    part = Part(data, "train", None, 1)
    kept = kept_blocks(part)
    matrices = [
        xgb.QuantileDMatrix(Feed(blocks, data.features.types), enable_categorical=True)
        for blocks in (part.read, lambda: iter(kept))
    ]
    words = {"objective": "binary:logistic", "nthread": 1}
    models = [bytes(xgb.train(words, matrix, 5).save_raw("ubj")) for matrix in matrices]
    assert models[0] == models[1]


def test_an_error_while_reading_is_raised_as_it_is():
    def broken():
        yield Rows(np.zeros((2, 1), np.float32), np.zeros(2, np.float32), None)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        xgb.QuantileDMatrix(Feed(broken, ["q"]))


TARGET = Target("y", "multiclass", "string", ("a", "b", "c"), (10, 30, 60), "drop")


def test_balanced_is_scikit_learns():
    labels = np.repeat(["a", "b", "c"], TARGET.counts)
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels)
    np.testing.assert_allclose(class_factors("balanced", TARGET), expected, rtol=1e-15)


def test_named_classes_get_their_weight_and_others_one():
    assert class_factors({"c": 2.5}, TARGET).tolist() == [1.0, 1.0, 2.5]
    boolean = Target("y", "binary", "bool", (False, True), (3, 5), "drop")
    assert class_factors({"true": 4}, boolean).tolist() == [1.0, 4.0]
    assert class_factors(None, TARGET) is None


@pytest.mark.parametrize(("weights", "says"), [({"d": 1.0}, "Its classes are a, b, c"), ({"a": -1.0}, "at least 0")])
def test_weights_that_can_not_be_are_faults(weights, says):
    with pytest.raises(SpecError, match=says):
        class_factors(weights, TARGET)


def test_a_regression_has_no_class_weights():
    with pytest.raises(SpecError, match="it is a regression"):
        class_factors("balanced", Target("y", "regression", "double", (), (), "drop"))
