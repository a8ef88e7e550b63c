"""What is sent of the lanes' vectors, when not all of it: the largest components, or all in half precision.

What a lane does not send it adds to its next vector (error feedback: Seide et al. 2014; Stich, Cordonnier & Jaggi,
"Sparsified SGD with memory", 2018; Karimireddy et al. 2019). The errors belong to lanes, and what arrives is added
exactly or in the order of lanes, so that results do not depend on which rank hosts which lane.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array

_LANE = struct.Struct("<II")  # lane, components
_HALF = 32768.0
"""The largest component is brought to at most this before it is rounded to half precision (which ends at 65,504)."""


class Form(Protocol):
    """A way to send lanes' vectors. `cut` gives what is sent of them, and leaves in `rows` what is not."""

    def cut(self, collective: Collective, lanes: Sequence[int], rows: Array) -> bytes:
        """Encode rows (lanes, size) in place; called by all ranks together."""
        ...

    def add(self, payloads: Sequence[bytes], size: int) -> Array:
        """Add up what all ranks have sent."""
        ...


class TopK:
    """The components of the largest size of every lane, in single precision."""

    def __init__(self, share: float) -> None:
        self._share = share

    def cut(self, collective: Collective, lanes: Sequence[int], rows: Array) -> bytes:
        """See `Form.cut`."""
        count = max(1, round(self._share * rows.shape[1]))
        parts = []
        for lane, row in zip(lanes, rows, strict=True):
            chosen = np.sort(np.argpartition(np.abs(row), len(row) - count)[len(row) - count :]).astype(np.uint32)
            values = row[chosen].astype(np.float32)
            row[chosen] -= values
            parts += [_LANE.pack(lane, count), chosen.tobytes(), values.tobytes()]
        return b"".join(parts)

    def add(self, payloads: Sequence[bytes], size: int) -> Array:
        """See `Form.add`: in the order of lanes."""
        found: dict[int, tuple[Array, Array]] = {}
        for payload in payloads:
            start = 0
            while start < len(payload):
                lane, count = _LANE.unpack_from(payload, start)
                start += _LANE.size
                chosen = np.frombuffer(payload, np.uint32, count, start)
                found[lane] = chosen, np.frombuffer(payload, np.float32, count, start + 4 * count)
                start += 8 * count
        total = np.zeros(size)
        for lane in sorted(found):
            chosen, values = found[lane]
            total[chosen] += values
        return total


class Half:
    """Every component in half precision, of a power of two that all lanes share.

    A rank sends the sum of its lanes: exactly, in single precision where that holds it, which it nearly always does
    (some tens of numbers of eleven bits), and the others beside it. So nothing is lost between lanes and the sum.
    """

    def cut(self, collective: Collective, lanes: Sequence[int], rows: Array) -> bytes:
        """See `Form.cut`."""
        largest = float(collective.allreduce(np.array([np.abs(rows).max(initial=0.0)]), "max")[0])
        exponent = np.floor(np.log2(_HALF) - np.log2(largest)) if 0 < largest < np.inf else 0.0
        scale = float(2.0 ** min(exponent, 900.0))  # finite, whatever is left
        total = np.zeros(rows.shape[1])
        for row in rows:
            rounded = (row * scale).astype(np.float16).astype(np.float64)
            row -= rounded / scale
            total += rounded  # exact: at most 4,096 multiples of 2^-24 up to 2^15
        single = total.astype(np.float32)
        inexact = np.flatnonzero(single != total).astype(np.uint32)
        head = struct.pack("<dI", scale, len(inexact))
        return head + single.tobytes() + inexact.tobytes() + total[inexact].tobytes()

    def add(self, payloads: Sequence[bytes], size: int) -> Array:
        """See `Form.add`: exactly."""
        total, scale = np.zeros(size), 1.0
        for payload in payloads:
            scale, count = struct.unpack_from("<dI", payload)
            start = 12 + 4 * size
            part = np.frombuffer(payload, np.float32, size, 12).astype(np.float64)
            inexact = np.frombuffer(payload, np.uint32, count, start)
            part[inexact] = np.frombuffer(payload, np.float64, count, start + 4 * count)
            total += part
        return total / scale


class Compression:
    """The lanes' errors of one rank, and the sums of what all ranks send.

    Parameters
    ----------
    collective : Collective
    form : Form
    """

    def __init__(self, collective: Collective, form: Form) -> None:
        self._collective, self._form = collective, form
        self.errors: dict[int, Array] = {}
        self.sent_bytes = self.plain_bytes = 0
        """What this rank has sent, and what it would have sent of one plain vector (float64) each time."""

    @classmethod
    def of(cls, kind: Literal["top_k", "float16"], top_k: float | None, collective: Collective) -> Compression:
        """Build what `SynchronousConfig` asks for."""
        return cls(collective, TopK(0.01 if top_k is None else top_k) if kind == "top_k" else Half())

    def sum(self, lanes: Sequence[int], rows: Array) -> Array | None:
        """Add lanes' vectors (lanes, size) up, for rank 0; None on the others. `rows` is used up."""
        size = rows.shape[1]
        for lane, row in zip(lanes, rows, strict=True):
            if lane in self.errors:
                row += self.errors[lane]
        payload = self._form.cut(self._collective, lanes, rows)
        self.errors = {lane: row.copy() for lane, row in zip(lanes, rows, strict=True)}
        if self._collective.rank:
            self.sent_bytes += len(payload)
            self.plain_bytes += 8 * size
        gathered = self._collective.gather(payload)
        return None if gathered is None else self._form.add(gathered, size)

    def collect(self) -> dict[int, Array] | None:
        """Bring the errors of all lanes to rank 0; called by all ranks together."""
        parts = [_LANE.pack(lane, len(error)) + error.tobytes() for lane, error in self.errors.items()]
        gathered = self._collective.gather(b"".join(parts))
        if gathered is None:
            return None
        found: dict[int, Array] = {}
        for payload in gathered:
            start = 0
            while start < len(payload):
                lane, size = _LANE.unpack_from(payload, start)
                found[lane] = np.frombuffer(payload, np.float64, size, start + _LANE.size)
                start += _LANE.size + 8 * size
        return found

    def restore(self, errors: Mapping[int, Array], lanes: Sequence[int]) -> None:
        """Take over the errors of the lanes that this rank hosts."""
        self.errors = {lane: np.array(errors[lane]) for lane in lanes if lane in errors}
