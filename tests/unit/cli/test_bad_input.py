"""Bad input gets one message: the object's name, what was expected and found, what to do; and its exit code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from pipelines.cli.main import main

ROWS = 2_000


def table(rows: int = ROWS, **columns: Any) -> pa.Table:
    rng = np.random.default_rng(1)
    plain = {
        "x": rng.normal(size=rows).astype(np.float32),
        "group": pa.array([f"g{i % 7}" for i in range(rows)]),
        "y": rng.integers(0, 2, size=rows),
    }
    return pa.table(plain | columns)


@dataclass(frozen=True)
class Place:
    """A dataset of two good files, and what a case does to it and to the spec."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def write(self, name: str, content: pa.Table) -> None:
        pq.write_table(content, self.data / name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Place(tmp_path)
    made.data.mkdir()
    made.write("a.parquet", table())
    made.write("b.parquet", table())
    return made


def mutirao(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def run_spec(place: Place, command: str, **changes: Any) -> Result:
    spec: dict[str, Any] = {
        "name": "bad",
        "data": {"source": str(place.data)},
        "label": {"column": "y"},
        "features": [["x", "group"]],
        "train": {"estimator": "logistic_regression"},
        "cluster": {"workers": 1, "worker": {"memory": "1 GiB"}},
        "runs": str(place.folder / "runs"),
        "registry": str(place.folder / "registry"),
    }
    path = place.folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec | changes))
    return mutirao(command, str(path))


def assert_told(result: Result, exit_code: int, *words: str) -> None:
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output, f"{word!r} is not in:\n{result.output}"


def truncate(place: Place) -> None:
    path = place.data / "b.parquet"
    path.write_bytes(path.read_bytes()[:-100])


def add_empty(place: Place) -> None:
    (place.data / "c.parquet").touch()


def add_text(place: Place) -> None:
    (place.data / "c.parquet").write_text("a,b\n1,2\n" * 100)


def add_without_rows(place: Place) -> None:
    place.write("c.parquet", table(0))


def add_encrypted(place: Place) -> None:
    body = (place.data / "a.parquet").read_bytes()
    (place.data / "c.parquet").write_bytes(b"PARE" + body[4:-4] + b"PARE")


def add_other_type(place: Place) -> None:
    place.write("c.parquet", table(x=pa.array([b"?"] * ROWS, pa.binary())))


def add_doubled_column(place: Place) -> None:
    doubled = table().append_column("x", pa.array(np.zeros(ROWS, np.float32)))
    place.write("c.parquet", doubled)


def remove_all(place: Place) -> None:
    shutil.rmtree(place.data)
    place.data.mkdir()


def remove_folder(place: Place) -> None:
    place.data.rename(place.folder / "dato")


def nothing(place: Place) -> None:
    pass


PLANNED: dict[str, tuple[Callable[[Place], None], dict[str, Any], int, tuple[str, ...]]] = {
    "a truncated file": (truncate, {}, 4, ("b.parquet", "truncated")),
    "an empty file": (add_empty, {}, 4, ("c.parquet", "0 bytes")),
    "a file without rows": (add_without_rows, {}, 4, ("c.parquet", "no rows")),
    "no Parquet": (add_text, {}, 4, ("c.parquet", "Parquet")),
    "an encrypted file": (add_encrypted, {}, 4, ("c.parquet", "encrypted")),
    "types that can't be reconciled": (add_other_type, {}, 4, ("x", "binary", "float", "c.parquet")),
    "a column twice in one file": (add_doubled_column, {}, 4, ("c.parquet", "x")),
    "no files": (remove_all, {}, 4, ("data", "no Parquet files")),
    "no folder": (remove_folder, {}, 2, ("data", "dato")),
    "a column that is missing": (nothing, {"features": [["z"]]}, 2, ("features[0].columns", "'z'")),
    "a machine too small": (nothing, {"cluster": {"workers": 500, "worker": {"memory": "8 GiB"}}}, 0, ()),
}


@pytest.mark.parametrize("case", PLANNED)
def test_planning_tells_what_is_wrong(place: Place, case: str) -> None:
    spoil, changes, exit_code, words = PLANNED[case]
    spoil(place)
    assert_told(run_spec(place, "plan", **changes), exit_code, *words)


def test_a_nested_column_is_no_feature(place: Place) -> None:
    for name in ("a.parquet", "b.parquet"):
        place.write(name, table(deep=pa.array([[1, 2]] * ROWS)))
    assert_told(run_spec(place, "plan", features=[["deep"]]), 2, "features[0].columns", "nested")
    assert_told(run_spec(place, "plan"), 0)


def test_bad_files_are_skipped_and_recorded_on_request(place: Place) -> None:
    truncate(place)
    result = run_spec(place, "plan", data={"source": str(place.data), "on_bad_file": "skip"})
    assert_told(result, 0, "skipped", "b.parquet", "2,000 rows")


def test_a_machine_too_small_is_found_before_anything_starts(place: Place) -> None:
    result = run_spec(place, "run", cluster={"workers": 500, "worker": {"memory": "8 GiB"}})
    assert_told(result, 3, "memory")
    assert not (place.folder / "runs" / "runs").exists()


def test_a_store_that_can_not_be_written_is_told(place: Place) -> None:
    (place.folder / "file").write_text("in the way")
    assert_told(run_spec(place, "plan", runs=str(place.folder / "file" / "runs")), 5, "file")


def test_an_unreachable_store_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert_told(mutirao("model", "list", "--registry", "s3://bucket/registry"), 5, "s3://bucket", "reach")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model", "show", "late"), ("late",)),
        (("run", "show", "nothing-at-all"), ("nothing-at-all",)),
        (("run", "no-such-spec.yaml"), ("no-such-spec.yaml",)),
        (("predict", "late@champion", "nowhere", "out"), ("nowhere",)),
    ],
)
def test_names_that_do_not_exist_are_told(place: Place, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_told(mutirao(*arguments), 2, *words)


RUNNING: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "null labels": ({"y": pa.array([None, 1, 0, 1] * (ROWS // 4))}, {}, ("y", "1000 of 4000", "on_null: drop")),
    "a constant label": ({"y": pa.array([1] * ROWS)}, {}, ("y", "constant")),
    "a label of another kind": (
        {"y": pa.array([f"c{i % 3}" for i in range(ROWS)])},
        {"label": {"column": "y", "kind": "binary"}},
        ("y", "binary"),
    ),
    "infinities": ({"x": pa.array(np.r_[np.inf, np.zeros(ROWS - 1)])}, {}, ("x", "infinit")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNNING)
def test_running_tells_what_is_wrong_with_the_rows(place: Place, case: str) -> None:
    columns, changes, words = RUNNING[case]
    for name in ("a.parquet", "b.parquet"):
        place.write(name, table(**columns))
    assert_told(run_spec(place, "run", **changes), 4, *words)
