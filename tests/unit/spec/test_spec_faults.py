"""A spec's faults come all at once, each with its path, its line and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import SpecError, UsageError
from pipelines.spec import PipelineSpec, load_spec

GOOD: dict[str, Any] = {
    "name": "late-flights",
    "data": {"source": "data_samples/flights", "derive": {"late": "arr_delay > 15"}},
    "label": {"column": "late", "on_null": "drop"},
    "features": [{"columns": ["distance"], "scale": "standard"}],
    "train": {"estimator": "logistic_regression"},
}


def faults(spec: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load_spec(spec)
    assert caught.value.exit_code == 2
    return {fault.path: f"{fault.message} | {fault.fix}" for fault in caught.value.faults}


def test_a_good_spec_loads_and_is_the_same_in_objects() -> None:
    spec = load_spec(GOOD)
    assert isinstance(spec, PipelineSpec)
    assert load_spec(spec) is spec
    assert load_spec(spec.model_dump(mode="json", exclude_unset=True)) == spec


def test_faults_of_all_sections_come_at_once() -> None:
    found = faults(
        GOOD
        | {
            "nmae": 1,
            "label": {"column": "late", "on_nul": "drop"},
            "train": {"estimator": "logistic_regresion"},
            "cluster": {"workers": "many"},
            "split": {"validation": 0.6, "test": 0.6},
        }
    )
    assert "Did you mean name?" in found["nmae"]
    assert "Did you mean on_null?" in found["label.on_nul"]
    assert "logistic_regression" in found["train.estimator"]
    assert "many" in found["cluster.workers"]
    assert "leave nothing to train on" in found["split"]


def test_a_missing_section_is_named() -> None:
    assert "Add label:" in faults({k: v for k, v in GOOD.items() if k != "label"})["label"]


def test_lines_of_the_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: x\ndata: {source: here}\nlabel: y\nfeatures:\n  - columns: [a]\n    scal: standard\n"
        "train: {estimator: xgboost}\n"
    )
    with pytest.raises(SpecError, match=r"features\[0\]\.scal \(line 6\): unknown key\. Did you mean scale"):
        load_spec(path)


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"features": [["late", "distance"]]}, "features[0].columns[0]", "is the label"),
        ({"label": {"column": "late", "kind": "regression"}}, "train.estimator", "label.kind is regression"),
        ({"stages": [{"name": "x", "call": "a:b", "needs": ["evalute"]}]}, "stages[0].needs[0]", "evaluate"),
        ({"stages": [{"name": "x", "call": "a:b", "needs": ["publish"]}]}, "stages[0].needs[0]", "after publish"),
        ({"stages": [{"name": "train", "call": "a:b"}]}, "stages[0].name", "another name"),
        ({"stages": [{"name": "x", "call": "not a function"}]}, "stages[0].call", "package.module:function"),
        ({"split": {"test": 0}, "publish": {"model": "m"}}, "publish.promote", "split.test is 0"),
        ({"split": {"test": 0}, "evaluate": {"require": {"auc": ">= 0.5"}}}, "evaluate.require.auc", "split.test is 0"),
        ({"split": {"validation": 0}, "evaluate": {"threshold": "f1"}}, "evaluate.threshold", "split.validation is 0"),
        ({"split": {"validation": 0}, "evaluate": {"calibrate": "sigmoid"}}, "evaluate.calibrate", "validation rows"),
        ({"features": []}, "features", "at least 1 item"),
        (
            {"train": {"estimator": "logistic_regression", "min_workers": 3}, "cluster": {"workers": 2}},
            "train.min_workers",
            "needs 3 workers, and the cluster has at most 2",
        ),
        ({"train": {"estimator": "logistic_regression", "params": {"l3": 1}}}, "train.params.l3", "l1_ratio"),
    ],
)
def test_impossible_combinations_are_refused(change: dict[str, Any], path: str, words: str) -> None:
    assert words in faults(GOOD | change)[path]


def test_stages_in_a_circle_are_refused() -> None:
    stages = [
        {"name": "a", "call": "m:f", "needs": ["b"]},
        {"name": "b", "call": "m:f", "needs": ["c"]},
        {"name": "c", "call": "m:f", "needs": ["a"]},
    ]
    assert "a → b → c → a" in faults(GOOD | {"stages": stages})["stages"]


def test_a_key_written_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: a\nlabel: x\nname: b\n")
    with pytest.raises(SpecError, match="name: written twice, on line 1 and on line 3"):
        load_spec(path)


def test_broken_yaml_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: [a\nlabel: x\n")
    with pytest.raises(SpecError, match="not YAML"):
        load_spec(path)


@pytest.mark.parametrize("text", ["name: 2026-13-45\n", "name: &x [*x]\n"])
def test_values_that_yaml_can_not_hold_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"spec\.yaml"):
        load_spec(path)


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("")
    with pytest.raises(UsageError, match=r"other\.yaml"):
        load_spec(tmp_path / "spec.yaml")


def test_the_cluster_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("backend: local\nworkers: 3\n")
    assert load_spec(GOOD | {"cluster": str(tmp_path / "cluster.yaml")}).cluster.workers == 3
    assert "no such file" in faults(GOOD | {"cluster": "nowhere.yaml"})["cluster"]
