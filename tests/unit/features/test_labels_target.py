"""Is the label understood, or refused with one message that says what to do?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.codec import dump, load
from pipelines.data.split import SplitPlan
from pipelines.errors import DataError, MutiraoError, NotFoundError, SpecError
from pipelines.features import FeatureConfig, LabelConfig, Target, fit_features

EVERY_ROW_TRAINS = SplitPlan("hash", None, 0.0, 0.0, 0)


@pytest.fixture
def target(make: Callable[..., Any]) -> Callable[..., Target]:
    def run(labels: Any, split: SplitPlan = EVERY_ROW_TRAINS, **label: Any) -> Target:
        labels = labels if isinstance(labels, pa.Array) else pa.array(labels)
        made = make(pa.table({"late": labels, "x": np.arange(len(labels)), "part": np.arange(len(labels)) % 10}))
        config = LabelConfig.model_validate({"column": "late", **label})
        return fit_features([FeatureConfig(columns=("x",))], config, made.source, made.shards(2), split).target

    return run


KINDS: list[tuple[Any, dict[str, Any], str, tuple[Any, ...], str]] = [
    ([True, False, True], {}, "binary", (False, True), "bool"),
    ([1, 0, 1, 1], {}, "binary", (0, 1), "int64"),
    (pa.array([1.0, 0.0, -0.0]), {}, "binary", (0.0, 1.0), "double"),
    (["no", "yes", "no"], {}, "binary", ("no", "yes"), "string"),
    (["late", "on time"], {"positive": "late"}, "binary", ("on time", "late"), "string"),
    ([2, 5, 2], {"positive": 2}, "binary", (5, 2), "int64"),
    (["b", "c", "a"], {}, "multiclass", ("a", "b", "c"), "string"),
    (pa.array(["b", "c", "a"]).dictionary_encode(), {}, "multiclass", ("a", "b", "c"), "string"),
    ([3, 1, 2], {}, "multiclass", (1, 2, 3), "int64"),
    ([3, 1, 2], {"kind": "regression"}, "regression", (), "double"),
    (list(range(40)), {}, "regression", (), "double"),
    (list(range(40)), {"kind": "multiclass"}, "multiclass", tuple(range(40)), "int64"),
    ([0.5, 1.5, 2.5], {}, "regression", (), "double"),
    ([1.0, 0.0, 1.0], {"kind": "regression"}, "regression", (), "double"),
    ([True, False], {"kind": "multiclass"}, "multiclass", (False, True), "bool"),
    (pa.array([0, 1], pa.uint8()), {}, "binary", (0, 1), "int64"),
]


@pytest.mark.parametrize(("labels", "label", "kind", "classes", "type_"), KINDS)
def test_the_kind_follows_from_the_values(
    target: Callable[..., Target], labels: Any, label: dict[str, Any], kind: str, classes: tuple[Any, ...], type_: str
) -> None:
    found = target(labels, **label)
    assert (found.kind, found.classes, found.type) == (kind, classes, type_)
    assert [type(value) for value in found.classes] == [type(value) for value in classes]
    again = load(Target, dump(found))
    assert again == found
    assert [type(value) for value in again.classes] == [type(value) for value in classes]
    assert found.n_outputs == (len(classes) if kind == "multiclass" else 1)


REFUSED: list[tuple[str, Any, dict[str, Any], list[str]]] = [
    ("null", [True, None, False, None], {}, ["2 of 4 labels are missing", "part-0.parquet", "on_null: drop"]),
    ("NaN", [1.5, float("nan"), 2.5], {}, ["1 of 3 labels are missing"]),
    ("only nulls", pa.array([None, None], pa.bool_()), {"on_null": "drop"}, ["no row of the training split"]),
    ("constant", [7, 7, 7], {}, ["constant", "7 in every row"]),
    ("constant number", [0.5, 0.5], {"kind": "regression"}, ["constant", "0.5 in every row"]),
    ("constant once nulls are dropped", [True, None], {"on_null": "drop"}, ["constant"]),
    ("three values", ["a", "b", "c"], {"kind": "binary"}, ["not binary", "3 in the training split: 'a', 'b', 'c'"]),
    ("words", ["a", "b"], {"kind": "regression"}, ["label.kind", "needs numbers", "string"]),
    ("infinite", [1.0, float("inf"), 2.0], {}, ["1 labels of the train split are infinite", "part-1.parquet"]),
    ("infinite class", [1.0, float("-inf"), 2.0], {"kind": "binary"}, ["infinite"]),
    ("huge", [1.0, 1e39, 2.0], {}, ["do not fit float32", "1e+39"]),
    ("many", [f"u{n}" for n in range(30)], {"max_classes": 20}, ["too many distinct values", "at most 20"]),
    ("list", [[1], [2]], {}, ["label.column", "list<", "can't be learned"]),
    ("date", pa.array([1, 2], pa.date32()), {}, ["date32", "can't be learned"]),
    ("other positive", ["a", "b"], {"positive": "c"}, ["positive: 'c'", "'a', 'b'"]),
    ("absent", [1, 2], {"column": "latte"}, ["no column 'latte'", "Did you mean late"]),
]


@pytest.mark.parametrize(
    ("labels", "label", "parts"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_a_label_that_cannot_be_learned_is_refused(
    target: Callable[..., Target], labels: Any, label: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises((DataError, SpecError)) as caught:
        target(labels, **label)
    for part in parts:
        assert part in str(caught.value)


def test_a_class_that_training_lacks_is_refused(target: Callable[..., Target]) -> None:
    labels = ["a", "b"] * 50
    split = SplitPlan("hash", "part", 0.2, 0.3, 1)
    with pytest.raises(DataError, match=r"classes that the training split does not have.*kind: stratified"):
        target([label + (str(row) if row % 10 in (0, 1, 2, 3) else "") for row, label in enumerate(labels)], split)


BINARY = Target("late", "binary", "bool", (False, True), (3, 2), "drop")
THREE = Target("late", "multiclass", "string", ("a", "b", "c"), (1, 1, 1), "fail")
NUMBER = Target("late", "regression", "double", (), (), "fail", 0.0, 1.0)


def test_labels_become_codes_and_come_back() -> None:
    labels = pa.array(["c", None, "a", "b"])
    for form in (labels, labels.dictionary_encode(), pa.chunked_array([labels]), labels.cast(pa.large_string())):
        np.testing.assert_array_equal(THREE.encode(form), np.array([2, np.nan, 0, 1], np.float32))
    assert THREE.encode(labels).dtype == np.float32
    assert THREE.decode(np.array([2, 0, 1])).to_pylist() == ["c", "a", "b"]
    assert BINARY.encode(pa.array([True, False])).tolist() == [1.0, 0.0]
    assert BINARY.encode(pa.array([1, 0])).tolist() == [1.0, 0.0]
    assert BINARY.decode(np.array([1, 0])).equals(pa.array([True, False]))
    assert Target("y", "binary", "double", (0.0, 1.0), (1, 1), "fail").encode(pa.array([-0.0, 1.0])).tolist() == [0, 1]
    np.testing.assert_array_equal(NUMBER.encode(pa.array([1, None, -3])), np.array([1, np.nan, -3], np.float32))
    assert NUMBER.decode(np.array([1.5])).to_pylist() == [1.5]


@pytest.mark.parametrize(
    ("target_", "labels", "message"),
    [
        (THREE, pa.array(["a", "d"]), "'d' is not a class"),
        (NUMBER, pa.array([1.0, float("inf")]), "does not fit float32"),
        (NUMBER, pa.array(["fast"]), "can't be read as double"),
        (BINARY, pa.array(["perhaps"]), "can't be read as bool"),
    ],
)
def test_labels_of_later_data_that_do_not_fit_are_refused(target_: Target, labels: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        target_.encode(labels)


def test_rows_without_a_label_are_found() -> None:
    batch = pa.record_batch({"late": pa.array([True, None, False]), "x": pa.array([1, 2, 3])})
    assert BINARY.labelled(batch).tolist() == [True, False, True]  # type: ignore[union-attr]
    assert BINARY.labelled(batch.slice(0, 1)) is None
    gaps = pa.record_batch({"late": pa.array([1.0, float("nan"), None])})
    assert NUMBER.labelled(gaps).tolist() == [True, False, False]  # type: ignore[union-attr]
    assert NUMBER.labelled(pa.table({"late": [1.0, 2.0]})) is None
    with pytest.raises(NotFoundError, match="Did you mean late"):
        BINARY.labelled(pa.record_batch({"late_": pa.array([True])}))


def test_its_errors_say_that_the_data_are_to_blame(target: Callable[..., Target]) -> None:
    with pytest.raises(MutiraoError) as caught:
        target([7, 7])
    assert caught.value.exit_code == 4
