"""How does Arrow read an object on a store, only while it is the one that was planned?

Every range is asked for under the condition that the ETag is still the same, so no mixture of two contents is ever
read, and no extra request is needed to know it.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pipelines.storage import ObjectStore

REQUEST_BYTES = 8 << 20
REQUESTS_AT_ONCE = 8
_GAP_BYTES = 1 << 20


class ObjectFile(io.RawIOBase):
    """An object as a file for reading. One thread at a time, as Arrow does it.

    Parameters
    ----------
    store : ObjectStore
    key : str
    size : int
        Bytes, as they were planned.
    etag : str
    """

    def __init__(self, store: ObjectStore, key: str, size: int, etag: str) -> None:
        super().__init__()
        self._store, self._key, self._size, self._etag = store, key, size, etag
        self._position = 0
        self._starts: list[int] = []
        self._fetched: list[bytes] = []

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Get ranges in few requests, several at a time, and keep them: reading them asks for nothing more."""
        wanted = _requests(ranges)
        with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, max(1, len(wanted))), "fetch") as pool:
            fetched = list(pool.map(lambda span: self._get(*span), wanted))
        pairs = sorted(zip((start for start, _ in wanted), fetched, strict=True))
        self._starts, self._fetched = [start for start, _ in pairs], [data for _, data in pairs]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._size, self._position + size)
        parts = []
        while self._position < stop:
            part = self._kept(self._position, stop) or self._get(self._position, min(stop, self._next_kept(stop)))
            parts.append(part)
            self._position += len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _kept(self, start: int, stop: int) -> bytes:
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return b""
        offset = start - self._starts[at]
        return self._fetched[at][offset : offset + stop - start]

    def _next_kept(self, stop: int) -> int:
        at = bisect_right(self._starts, self._position)
        return self._starts[at] if at < len(self._starts) else stop

    def _get(self, start: int, stop: int) -> bytes:
        data = self._store.get_range(self._key, start, stop, etag=self._etag)
        if len(data) != stop - start:
            raise OSError(f"unexpected end of stream: bytes {start}:{stop} wanted, {len(data)} found")
        return data


def _requests(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges with small gaps between them, then cut what is too large for one request."""
    joined: list[list[int]] = []
    for start, stop in sorted(ranges):
        if joined and start - joined[-1][1] <= _GAP_BYTES:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    return [
        (begin, min(stop, begin + REQUEST_BYTES))
        for start, stop in joined
        for begin in range(start, stop, REQUEST_BYTES)
    ]
