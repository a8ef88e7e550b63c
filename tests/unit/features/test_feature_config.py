"""Does a spec's `features:` and `label:` say what it means, and is what makes no sense refused with a remedy?"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.codec import from_plain, to_plain
from pipelines.features import FeatureConfig, LabelConfig


@pytest.mark.parametrize("given", ["distance", ["distance"], {"columns": "distance"}, {"columns": ["distance"]}])
def test_bare_columns_are_a_feature(given: Any) -> None:
    assert FeatureConfig.model_validate(given).columns == ("distance",)


def test_the_words_of_the_design_are_understood() -> None:
    numbers = FeatureConfig.model_validate({"columns": ["distance"], "scale": "standard", "impute": "mean"})
    origins = FeatureConfig.model_validate({"columns": ["origin"], "encode": "one_hot", "max_categories": 500})
    filled = FeatureConfig.model_validate({"columns": ["wind"], "impute": {"constant": 0}})
    for config in (numbers, origins, filled):
        assert from_plain(FeatureConfig, to_plain(config)) == config


def test_a_label_may_be_a_bare_column() -> None:
    assert LabelConfig.model_validate("late") == LabelConfig(column="late", on_null="fail", kind="auto")


IMPOSSIBLE = [
    ({"columns": []}, "at least 1 item"),
    ({"columns": ["a", "a"]}, "named twice"),
    ({"columns": ["a"], "scal": "standard"}, "Extra inputs are not permitted"),
    ({"columns": ["a"], "scale": "normal"}, "'standard', 'minmax', 'robust' or 'none'"),
    ({"columns": ["a"], "encode": "one_hot", "scale": "standard"}, "remove scale or encode"),
    ({"columns": ["a"], "bins": 4, "scale": "minmax"}, "remove scale or bins"),
    ({"columns": ["a"], "bins": 1}, "greater than or equal to 2"),
    ({"columns": ["a"], "bins": 4, "encode": "hash"}, "use encode: ordinal, one_hot or native"),
    ({"columns": ["a"], "bin_by": "uniform"}, "give their number with bins"),
    ({"columns": ["a"], "buckets": 64}, "buckets are for encode: hash"),
    ({"columns": ["a"], "encode": "hash", "max_categories": 9}, "keeps no dictionary"),
    ({"columns": ["a"], "encode": "hash", "impute": "most_frequent"}, "use impute: {constant: VALUE}"),
    ({"columns": ["a"], "encode": "one_hot", "impute": "median"}, "categories have no median"),
    ({"columns": ["a"], "impute": {"constant": float("inf")}}, "must be a finite number"),
    ({"columns": ["a"], "min_frequency": 0}, "greater than or equal to 1"),
    ({"columns": ["a"], "min_frequency": 1.5}, "less than 1"),
    ({"columns": ["a"], "dates": ["fortnight"]}, "'year', 'quarter', 'month'"),
    ({"columns": ["a"], "dates": []}, "at least 1 item"),
    ({"columns": ["a"], "dates": ["month_cyclic"], "encode": "one_hot"}, "list the plain parts"),
    ({"columns": ["a"], "dates": ["month_cyclic"], "bins": 3}, "list the plain parts"),
    ({"columns": ["a"], "timezone": "Europe/Lisbon"}, "list the parts you want in dates"),
    ({"columns": ["a"], "params": {"degree": 2}}, "belong to a transform"),
    ({"columns": ["a"], "transform": "PowerTransformer"}, "not an import path"),
    ({"columns": ["a"], "transform": "sklearn.preprocessing.PCA", "scale": "standard"}, "scale can't be used with it"),
]


@pytest.mark.parametrize(("given", "message"), IMPOSSIBLE, ids=[message for _, message in IMPOSSIBLE])
def test_impossible_features_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        FeatureConfig.model_validate(given)
    assert message in str(caught.value)


def test_all_faults_of_an_item_come_at_once() -> None:
    given = {"columns": ["a"], "encode": "hash", "scale": "standard", "max_categories": 5, "timezone": "UTC"}
    with pytest.raises(ValidationError) as caught:
        FeatureConfig.model_validate(given)
    for part in ("can't be scaled", "keeps no dictionary", "timezone says"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"column": "late", "on_null": "ignore"}, "'fail' or 'drop'"),
        ({"column": "late", "kind": "ranking"}, "'binary', 'multiclass' or 'regression'"),
        ({"column": "late", "kind": "regression", "positive": True}, "remove one"),
        ({}, "Field required"),
    ],
)
def test_impossible_labels_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LabelConfig.model_validate(given)
    assert message in str(caught.value)
