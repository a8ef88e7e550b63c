"""A plan is made of the dataset that is there, keyed by everything that its results hang on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli.plan_view import show_plan
from pipelines.errors import SpecError
from pipelines.plan import Plan, compile_plan
from pipelines.spec import Places, load_spec
from pipelines.storage import open_store


def write(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True)
    columns = {"x": pa.array([float(i) for i in range(rows)]), "y": pa.array([i % 2 for i in range(rows)])}
    pq.write_table(pa.table(columns), folder / "part.parquet")


def plan(tmp_path: Path, **changes: Any) -> Plan:
    spec = {
        "name": "p",
        "data": {"source": "data"},
        "label": "y",
        "features": [["x"]],
        "train": {"estimator": "logistic_regression"},
    }
    places = Places(str(tmp_path / "runs"), str(tmp_path / "registry"))
    return compile_plan(load_spec(spec | changes), places).plan


def test_the_same_relative_source_elsewhere_is_another_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("a", 1000), ("b", 50)):
        write(tmp_path / name / "data", rows)
        monkeypatch.chdir(tmp_path / name)
        made = plan(tmp_path)
        assert (made.data.rows, made.data.root) == (rows, str(tmp_path / name / "data"))


def test_a_damaged_manifest_of_an_earlier_plan_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", 100)
    monkeypatch.chdir(tmp_path)
    before = plan(tmp_path)
    store = open_store(str(tmp_path / "runs"))
    [info] = list(store.list("cache/manifests"))
    store.replace(info.key, b"no Arrow")
    assert plan(tmp_path) == before


def test_a_filter_on_a_derived_column_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for month in (1, 2):
        write(tmp_path / "data" / f"month={month}", 10)
    monkeypatch.chdir(tmp_path)
    data = {"source": "data", "derive": {"later": "month > 1"}, "filter": "later"}
    made = plan(tmp_path, data=data)
    assert (made.data.files, made.data.files_before) == (1, 2)


def test_workers_too_small_for_anything_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", 100)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"cluster\.worker\.memory: a worker and its rank need"):
        plan(tmp_path, cluster={"worker": {"memory": "256 MiB"}})


def test_an_edited_module_of_the_users_is_another_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.plan.keys import source_digest

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "some_stage.py").write_text("def f(context): return 1\n")
    before = source_digest("some_stage:f")
    (tmp_path / "some_stage.py").write_text("def f(context): return 2\n")
    assert source_digest("some_stage:f") != before
    assert source_digest("no_such_module_at_all:f") == ""


@pytest.mark.parametrize(
    ("train", "cluster", "expected", "words"),
    [
        ({}, {"workers": 2}, (2, 1, 2), "2 × 1 thread at the start; after losses it goes on with 1 or more"),
        (
            {"min_workers": 2},
            {"workers": 2, "max_workers": 4},
            (2, 2, 4),
            "grows to 4; after losses it goes on with no",
        ),
        ({"min_workers": 3}, {"workers": 2, "max_workers": 4}, (3, 3, 4), "3 × 1 thread at the start, grows to 4"),
        ({"max_workers": 1}, {"workers": 2}, (1, 1, 1), "no fewer than 1"),
        ({"estimator": "xgboost"}, {"workers": 2}, (2, None, 2), "losing one ends the training"),
    ],
)
def test_a_plan_says_with_how_many_ranks_a_training_starts_grows_and_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    train: dict[str, Any],
    cluster: dict[str, Any],
    expected: tuple[int, int | None, int],
    words: str,
) -> None:
    write(tmp_path / "data", 100)
    monkeypatch.chdir(tmp_path)
    made = plan(tmp_path, train={"estimator": "logistic_regression"} | train, cluster=cluster)
    assert (made.ranks, made.least, made.most) == expected
    show_plan(made)
    assert words in capsys.readouterr().out
