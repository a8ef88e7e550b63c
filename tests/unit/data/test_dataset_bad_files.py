"""Every kind of bad file gets one clear message, and is left out on request."""

from __future__ import annotations

import base64
import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.dataset import open_dataset
from pipelines.data.footers import read_footers
from pipelines.data.listing import ListedFile
from pipelines.errors import DataError, DatasetChangedError, NotFoundError, StorageError
from pipelines.storage import open_store

GOOD = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})


class _Keys(pe.KmsClient):
    """Keys in plain sight: only that the file is encrypted matters."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def _encrypted(path: Path, *, plain_footer: bool) -> None:
    factory = pe.CryptoFactory(lambda _: _Keys())
    config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["a"]}, plaintext_footer=plain_footer)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, GOOD.schema, encryption_properties=properties) as writer:
        writer.write_table(GOOD)


def _written(path: Path, table: pa.Table = GOOD) -> bytes:
    pq.write_table(table, path)
    return path.read_bytes()


def _patched(path: Path, start: int, stop: int | None, by: bytes) -> None:
    data = bytearray(_written(path))
    data[start:stop] = by
    path.write_bytes(data)


Maker = Callable[[Path], object]
TABLE: list[tuple[str, Maker, str]] = [
    ("empty", lambda p: p.write_bytes(b""), "the file is empty; expected a Parquet file; found 0 bytes"),
    ("zero rows", lambda p: _written(p, GOOD.slice(0, 0)), "has no rows; expected at least one row; found 0 rows"),
    (
        "truncated",
        lambda p: p.write_bytes(_written(p)[:-20]),
        "is truncated: its footer is missing; expected b'PAR1' at its end",
    ),
    ("just begun", lambda p: p.write_bytes(b"PAR1"), "is truncated"),
    ("text", lambda p: p.write_text("a,b\n1,x\n"), "is not Parquet; expected b'PAR1' at its start; found text"),
    ("JSON", lambda p: p.write_text('{"a": 1}'), "found JSON"),
    ("gzip", lambda p: p.write_bytes(gzip.compress(b"a,b\n1,x\n")), "found a gzip file"),
    ("noise", lambda p: p.write_bytes(bytes(range(256))), "is not Parquet"),
    ("encrypted footer", lambda p: _encrypted(p, plain_footer=False), "is encrypted; expected plain Parquet"),
    ("encrypted column", lambda p: _encrypted(p, plain_footer=True), "is encrypted; expected plain Parquet"),
    (
        "column twice",
        lambda p: _written(p, pa.table([[1], [2], [3]], names=["a", "b", "a"])),
        "has a column twice; .*found 'a'",
    ),
    (
        "footer too long",
        lambda p: _patched(p, -8, -4, b"\xff\xff\xff\x00"),
        "footer is damaged; expected a footer that fits into the file",
    ),
    ("footer too short", lambda p: _patched(p, -8, -4, b"\x04\x00\x00\x00"), "footer is damaged"),
    ("other start", lambda p: _patched(p, 0, 4, b"NOPE"), "is not Parquet"),
]


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE])
def test_bad_files_are_named_with_what_was_found(tmp_path: Path, make: Maker, message: str) -> None:
    _written(tmp_path / "a.parquet")
    make(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=f"^{tmp_path}/bad.parquet: .*{message}.*on_bad_file: skip") as error:
        open_dataset(str(tmp_path))
    assert error.value.exit_code == 4
    assert error.value.remedy
    dataset = open_dataset(str(tmp_path), on_bad_file="skip")
    assert dataset.rows == 3
    assert [each.path for each in dataset.skipped] == ["bad.parquet"]
    assert dataset.skipped[0].reason in str(error.value)
    dataset.check_unchanged()


def test_all_bad_files_are_one_error(tmp_path: Path) -> None:
    for i, (_, make, _) in enumerate(TABLE):
        make(tmp_path / f"{i}.parquet")
    for skip in ("fail", "skip"):
        with pytest.raises(DataError, match=f"{len(TABLE)} files can't be used") as error:
            open_dataset(str(tmp_path), on_bad_file=skip)  # type: ignore[arg-type]  # the literal's values
        assert all(f"\n  {i}.parquet: " in str(error.value) for i in range(len(TABLE)))


def test_a_folder_without_data_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(DataError, match=r"there are no Parquet files; expected at least one; found 1 hidden files"):
        open_dataset(str(tmp_path))
    with pytest.raises(NotFoundError, match="exit"):
        open_dataset(str(tmp_path / "exit"))


def test_a_file_that_may_not_be_read_is_no_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _written(tmp_path / "a.parquet")

    def denied(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "a.parquet"))

    monkeypatch.setattr("os.open", denied)  # whoever runs the tests may be root
    with pytest.raises(StorageError, match=r"a\.parquet: can't read") as error:
        open_dataset(str(tmp_path), on_bad_file="skip")
    assert error.value.exit_code == 5


def test_a_file_that_vanishes_meanwhile_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetChangedError, match=r"gone\.parquet: the file vanished"):
        read_footers(str(tmp_path), [ListedFile("gone.parquet", 100, "", 0)])


def test_a_large_footer_needs_a_second_read(tmp_path: Path) -> None:
    wide = pa.table({f"column_{i:05d}": [i] for i in range(700)})
    pq.write_table(wide, tmp_path / "wide.parquet")
    url = f"memory://wide-{tmp_path.name}"
    open_store(url).replace("wide.parquet", (tmp_path / "wide.parquet").read_bytes())
    assert pq.read_metadata(tmp_path / "wide.parquet").serialized_size > 64 * 1024
    for source in (str(tmp_path), url):
        assert len(open_dataset(source).schema) == 700


@settings(max_examples=30)
@given(data=st.data())
def test_any_truncation_and_any_noise_is_described(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = _written(folder / "x.parquet")
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for content in (cut, data.draw(st.binary(max_size=64)), cut + b"PAR1"):
        (folder / "x.parquet").write_bytes(content)
        footers = read_footers(str(folder), [ListedFile("x.parquet", len(content), "", 0)])
        assert len(footers.bad) + footers.files.num_rows == 1
    shutil.rmtree(folder)
