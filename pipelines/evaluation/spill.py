"""How ordered scores lie on scratch storage between the two passes: compact records, sorted, with fences to seek by.

A task writes one file; every block of rows that it scored becomes a *run* in it, and a run holds one *section* for each
stream (the part as a whole, a segment, a class): records of distinct keys in ascending order, then every `FENCE`-th key
again (its fences). Sections lie in the order of their streams, so that neighbouring streams are one read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from pipelines.errors import StorageError
from pipelines.evaluation.groups import Keys, Weights, keys_of, scores_of
from pipelines.evaluation.result import Part, Scalar
from pipelines.storage import Location
from pipelines.storage.faults import storage_errors

A = TypeVar("A")
B = TypeVar("B")

FENCE = 512
"""Records between two fences: the grain of seeking, and what a read may bring too much."""


class Stream(NamedTuple):
    """Which rows are ordered together: a part, one value of a segment column of it, one class against the rest."""

    part: Part
    column: str = ""
    value: Scalar = None
    output: int = 0

    def order(self) -> tuple[str, str, str, int]:
        """Sort key: the same in every process, whatever the types of the values."""
        return self.part, self.column, json.dumps(self.value), self.output


@dataclass(frozen=True, slots=True)
class Section:
    """Where the records of a stream lie in a file; `layout` names the types of key and weights."""

    stream: Stream
    offset: int
    records: int
    layout: str
    fence: int = FENCE

    @property
    def bytes(self) -> int:
        """Size of the records in the file; the fences follow them."""
        return self.records * _dtype(self.layout).itemsize


@dataclass(frozen=True)
class Run:
    """The sections of one run, in the order of their streams."""

    path: str
    sections: tuple[Section, ...]


Records = tuple[Keys, Weights, Weights]
"""Ascending distinct keys, positive and negative weights."""


class RunWriter:
    """Write runs into one new file of a scratch folder; a context manager.

    The file's name is new every time, so that a task that is run again does not meet what it left behind.
    """

    def __init__(self, folder: Location) -> None:
        self._filesystem = folder.filesystem
        self._url = folder.url
        self.path = f"{folder.path}/{uuid.uuid4().hex}.runs"
        self._stream: Any = None
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._stream is not None:
            with storage_errors(self._url, "write scratch files to"):
                self._stream.close()

    def write(self, sections: Iterable[tuple[Stream, Records]]) -> Run:
        """Write a run; `sections` come in the order of their streams, none empty."""
        return Run(self.path, tuple(self.append(stream, [records]) for stream, records in sections))

    def append(self, stream: Stream, chunks: Iterable[Records], *, layout: str = "", fence: int = FENCE) -> Section:
        """Write a section from chunks in ascending order of their keys; without a layout, that of the first chunk."""
        offset, records, fences = self._offset, 0, []
        for keys, positive, negative in chunks:
            layout = layout or _layout(keys, positive, negative)
            self._put(_pack(layout, keys, positive, negative))
            fences.append(keys[-records % fence :: fence])
            records += len(keys)
        self._put(np.concatenate(fences))
        return Section(stream, offset, records, layout, fence)

    def _put(self, data: npt.NDArray[Any]) -> None:
        with storage_errors(self._url, "write scratch files to"):
            if self._stream is None:
                self._stream = self._filesystem.open_output_stream(self.path)
            self._stream.write(pa.py_buffer(data))
        self._offset += data.nbytes


class RunReader:
    """Read sections back; a context manager. Reads of a remote store run side by side."""

    _OPEN = 128  # local files held open: a process may have 1024 as a rule
    _THREADS = 16

    def __init__(self, folder: Location) -> None:
        self._filesystem, self._url = folder.filesystem, folder.url
        self._files: dict[str, Any] = {}
        local = isinstance(folder.filesystem, pafs.LocalFileSystem)
        self._pool = None if local else ThreadPoolExecutor(self._THREADS, "scratch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for file in self._files.values():
            file.close()
        self._files.clear()

    def map(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Apply a function that reads to every item."""
        return list(map(function, items) if self._pool is None else self._pool.map(function, items))

    def fences(self, run: Run, section: Section) -> Keys:
        """Read the keys of every `fence`-th record of a section."""
        count = -(-section.records // section.fence)
        return np.frombuffer(self._read(run.path, section.offset + section.bytes, 8 * count), np.uint64)

    def between(self, run: Run, section: Section, fences: Keys, low: int, high: int) -> Records:
        """Read the records of a section whose keys lie in ``[low, high)``."""
        first = max(int(np.searchsorted(fences, np.uint64(low), "right")) - 1, 0)
        last = int(np.searchsorted(fences, np.uint64(high - 1), "right"))
        start, stop = first * section.fence, min(last * section.fence, section.records)
        if stop <= start:
            return unpack(section.layout, b"")
        size = _dtype(section.layout).itemsize
        data = self._read(run.path, section.offset + start * size, (stop - start) * size)
        keys, positive, negative = unpack(section.layout, data)
        inside = slice(
            int(np.searchsorted(keys, np.uint64(low))), int(np.searchsorted(keys, np.uint64(high - 1), "right"))
        )
        return keys[inside], positive[inside], negative[inside]

    def neighbours(self, run: Run, sections: Sequence[Section]) -> list[Records]:
        """Read neighbouring sections of a run whole, with one request."""
        start = sections[0].offset
        data = memoryview(self._read(run.path, start, sections[-1].offset + sections[-1].bytes - start))
        return [unpack(s.layout, data[s.offset - start : s.offset - start + s.bytes]) for s in sections]

    def _read(self, path: str, offset: int, size: int) -> bytes:
        with storage_errors(self._url, "read scratch files of"):
            if self._pool is None:
                data: bytes = self._file(path).read_at(size, offset)
            else:
                with self._filesystem.open_input_file(path) as file:
                    data = file.read_at(size, offset)
        if len(data) != size:
            raise StorageError(
                "a scratch file is shorter than was written", on=path, expected=f"{size} bytes", found=f"{len(data)}"
            )
        return data

    def _file(self, path: str) -> Any:
        if path in self._files:
            self._files[path] = self._files.pop(path)  # most recently used last
            return self._files[path]
        while len(self._files) >= self._OPEN:
            self._files.pop(next(iter(self._files))).close()
        self._files[path] = self._filesystem.open_input_file(path)
        return self._files[path]


def unpack(layout: str, data: bytes | memoryview) -> Records:
    """Turn bytes back into records: uint64 keys, int64 or float64 weights."""
    records = np.frombuffer(data, _dtype(layout))
    keys = records["key"]
    wide: Any = np.float64 if _types(layout)[1].startswith("f") else np.int64
    full = keys.astype(np.uint64) if keys.dtype.itemsize == 8 else keys_of(_short_scores(keys).astype(np.float64))
    return full, records["positive"].astype(wide), records["negative"].astype(wide)


def _pack(layout: str, keys: Keys, positive: Weights, negative: Weights) -> npt.NDArray[Any]:
    records = np.empty(len(keys), _dtype(layout))
    records["key"] = keys if records.dtype["key"].itemsize == 8 else _short_keys(scores_of(keys).astype(np.float32))
    records["positive"], records["negative"] = positive, negative
    return records


def _layout(keys: Keys, positive: Weights, negative: Weights) -> str:
    # The narrowest types that lose nothing. Scores of XGBoost are float32; counts are one or two as a rule.
    scores = scores_of(keys)
    with np.errstate(over="ignore"):
        short = bool((scores.astype(np.float32) == scores).all())
    if positive.dtype == np.int64:
        most = int(max(positive.max(), negative.max()))
        number = next(f"u{size}" for size in (1, 2, 4, 8) if most < 1 << 8 * size)
    else:
        with np.errstate(over="ignore"):
            fits = all((weights.astype(np.float32) == weights).all() for weights in (positive, negative))
        number = "f4" if fits else "f8"
    return f"{'u4' if short else 'u8'} {number}"


def merged_layout(layouts: Iterable[str]) -> str:
    """Choose the layout that holds sums of records of these layouts."""
    types = [_types(layout) for layout in layouts]
    key = "u4" if all(key == "u4" for key, _ in types) else "u8"
    return f"{key} {'f8' if types[0][1].startswith('f') else 'u8'}"


def _types(layout: str) -> list[str]:
    return layout.split(" ")


def _dtype(layout: str) -> np.dtype[Any]:
    key, number = _types(layout)
    return np.dtype([("key", f"<{key}"), ("positive", f"<{number}"), ("negative", f"<{number}")])


_SHORT_SIGN = np.uint32(1 << 31)


def _short_keys(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    bits = scores.view(np.uint32)
    return np.where(bits & _SHORT_SIGN, bits, bits ^ ~_SHORT_SIGN)


def _short_scores(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    return np.where(keys & _SHORT_SIGN, keys, keys ^ ~_SHORT_SIGN).view(np.float32)
