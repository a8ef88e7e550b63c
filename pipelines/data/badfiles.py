"""Why can this file not be read as Parquet? What was expected, what is there, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.errors import DataError

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
SIGNATURE_BYTES = 28
"""What follows a footer in plain text when columns are encrypted: a nonce and a tag."""

_OTHERS = (
    (b"\x1f\x8b", "a gzip file"),
    (b"PK\x03\x04", "a zip file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"SQLite", "an SQLite file"),
)
_SHOWN = 20


@dataclass(frozen=True)
class BadFile:
    """A file that can't be used: what is wrong, what was expected, what was found, what to do."""

    path: str
    what: str
    expected: str = ""
    found: str = ""
    remedy: str = ""
    rows_missing: bool = False

    @property
    def reason(self) -> str:
        """All but the path and the remedy, in one line."""
        pair = [f"expected {self.expected}"] * bool(self.expected) + [f"found {self.found}"] * bool(self.found)
        return "; ".join([self.what, *pair])


def refuse(bad: Sequence[BadFile], *, on: str) -> DataError:
    """Make one error of all bad files."""
    skip = "Set on_bad_file: skip to leave such files out and record them."
    if len(bad) == 1:
        one = bad[0]
        place = f"{on.rstrip('/')}/{one.path}"
        return DataError(one.what, on=place, expected=one.expected, found=one.found, remedy=f"{one.remedy} {skip}")
    lines = [f"\n  {each.path}: {each.reason}. {each.remedy.rstrip('.')}" for each in bad[:_SHOWN]]
    lines += [f"\n  and {len(bad) - _SHOWN} more"] * (len(bad) > _SHOWN)
    return DataError(f"{len(bad)} files can't be used{''.join(lines)}", on=on, remedy=f"\n  {skip}")


def empty(path: str) -> BadFile:
    """Describe a file of no bytes."""
    return BadFile(path, "the file is empty", "a Parquet file", "0 bytes", "Delete it, or write it again.")


def not_parquet(path: str, size: int, head: bytes, tail: bytes) -> BadFile:
    """Describe a file that does not end as Parquet does, from its first and last bytes."""
    if ENCRYPTED in (head[:4], tail[-4:]):
        return encrypted(path)
    if head[:4] == MAGIC:
        found = f"{tail[-4:]!r} at the end of {size:,} bytes"
        remedy = "Copy or write it again; perhaps its writer is still at work or was killed."
        return BadFile(
            path, "the Parquet file is truncated: its footer is missing", "b'PAR1' at its end", found, remedy
        )
    remedy = "Convert it to Parquet, move it away, or name the files with a glob such as **/*.parquet."
    return BadFile(path, "the file is not Parquet", "b'PAR1' at its start", _kind(head), remedy)


def encrypted(path: str) -> BadFile:
    """Describe an encrypted file."""
    remedy = "Write a decrypted copy: keys can't be given here."
    return BadFile(path, "the Parquet file is encrypted", "plain Parquet", "an encrypted footer or columns", remedy)


def damaged(path: str, found: str, expected: str = "a Parquet footer") -> BadFile:
    """Describe a file whose footer makes no sense."""
    return BadFile(path, "the Parquet file's footer is damaged", expected, found, "Copy or write it again.")


def without_rows(path: str) -> BadFile:
    """Describe a file of no rows."""
    return BadFile(path, "the Parquet file has no rows", "at least one row", "0 rows", "Delete it.", rows_missing=True)


def doubled(path: str, names: Sequence[str]) -> BadFile:
    """Describe a file that has columns of the same name."""
    twice = ", ".join(repr(name) for name, count in Counter(names).items() if count > 1)
    remedy = "Write it again with distinct names."
    return BadFile(path, "the Parquet file has a column twice", "columns with distinct names", twice, remedy)


def _kind(head: bytes) -> str:
    for magic, kind in _OTHERS:
        if head.startswith(magic):
            return kind
    text = head[:40].decode("utf-8", "replace")
    if "�" not in text and all(c.isprintable() or c in "\r\n\t" for c in text):
        return "JSON" if text.lstrip()[:1] in ("{", "[") else "text"
    return f"the bytes {head[:4]!r}"
