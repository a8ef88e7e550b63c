"""Which 64-bit hash has a value? The same on every machine, for every width of a type and every version of Arrow.

A value is first brought into canonical 64-bit words, then the words are absorbed one after the other:
``state = mix(state ^ word)``, with SplitMix64's finaliser as `mix` (`order.mix`) and a tag of the kind as first word.

======================================  =====================================================================
values                                  words
======================================  =====================================================================
integers, booleans                      two's complement, 64 bits
floats and decimals that are whole      as the integer (so 7, 7.0 and 7.00 are the same key; −0.0 is 0)
other floats                            the bits of the float64; every NaN is one value
other decimals                          as the text of the shortest form
dates, timestamps                       seconds since 1970 (floored), then nanoseconds within the second
times, durations                        nanoseconds
text, binary                            length in bytes, then little-endian words of the bytes, padded with zeros
null                                    none: the tag alone
======================================  =====================================================================
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.order import mix
from pipelines.errors import UsageError

_NULL, _INTEGER, _FLOAT, _INSTANT, _SPAN, _BYTES = range(1, 7)
_LONG_BYTES = 1024
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_word(*key: int | str) -> int:
    """64 bits of the SHA-256 of a key, to start a hash from."""
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def hash_values(values: pa.Array, seed: int = 0) -> np.ndarray:
    """Hash each value; equal values have equal hashes whatever the width of their type.

    Parameters
    ----------
    values : Array
        Of any type but nested ones; dictionaries count as their values.
    seed : int
        64-bit word to start from, see `seed_word`.

    Returns
    -------
    ndarray of uint64, shape (values,)

    Raises
    ------
    UsageError
        A type that has no hash.
    """
    if not pa.types.is_dictionary(values.type):
        if not pa.types.is_decimal(values.type):
            return _hash_each(values, seed)
        values = values.dictionary_encode("encode")  # decimals go through Python one by one
    distinct = _hash_each(values.dictionary, seed)
    null = _hash_each(pa.nulls(1, pa.int64()), seed)
    codes = pc.fill_null(values.indices.cast(pa.int64()), len(distinct)).to_numpy(zero_copy_only=False)
    return np.concatenate([distinct, null])[codes]


def hash_rows(path: str, row_group: int, rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """Hash rows' identities: a path relative to the dataset's root, a row group, row numbers in it.

    Parameters
    ----------
    path : str
    row_group : int
    rows : ndarray of int64
    seed : int

    Returns
    -------
    ndarray of uint64, shape (rows,)
    """
    words = rows.astype(np.int64, copy=False).view(np.uint64) * _GOLDEN
    words += _row_group_start(path, row_group, seed)
    return mix(words)


@lru_cache(maxsize=1024)
def _row_group_start(path: str, row_group: int, seed: int) -> np.uint64:
    """Where a row group's sequence of SplitMix64 begins."""
    return mix(hash_values(pa.array([path]), seed) ^ np.uint64(row_group))[0]


def hashable(type: pa.DataType) -> bool:
    """Whether values of a type have a hash."""
    return not (pa.types.is_nested(type) or pa.types.is_interval(type))


def _hash_each(values: pa.Array, seed: int) -> np.ndarray:
    type = values.type
    state = np.full(1, seed, np.uint64)  # broadcast by the first word
    if pa.types.is_null(type):
        return np.repeat(_absorb(state, _NULL), len(values))
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        state = _absorb(state, _INTEGER, _integers(values))
    elif pa.types.is_floating(type):
        state = _floats(values, state)
    elif pa.types.is_date(type) or pa.types.is_timestamp(type):
        state = _instants(values, state)
    elif pa.types.is_time(type) or pa.types.is_duration(type):
        unit = type.unit
        count = pc.fill_null(values.cast(pa.int32() if type.bit_width == 32 else pa.int64()).cast(pa.int64()), 0)
        state = _absorb(state, _SPAN, _words(count) * np.uint64({"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]))
    elif pa.types.is_decimal(type):
        state = _decimals(values, state)
    elif hashable(type):
        state = _bytes(values, state)
    else:
        raise UsageError(f"values of type {type} can't be hashed", remedy="Choose a column of plain values.")
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        state[null] = _absorb(np.full(1, seed, np.uint64), _NULL)
    return state


def _absorb(state: np.ndarray, tag: int, *words: np.ndarray) -> np.ndarray:
    state = mix((state ^ np.uint64(tag)) + _GOLDEN)
    for word in words:
        state = mix(state ^ word)
    return state


def _words(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)


def _integers(values: pa.Array) -> np.ndarray:
    filled = pc.fill_null(values, False if pa.types.is_boolean(values.type) else 0)
    plain = filled.to_numpy(zero_copy_only=False)
    return plain if plain.dtype == np.uint64 else plain.astype(np.int64).view(np.uint64)


def _floats(values: pa.Array, state: np.ndarray) -> np.ndarray:
    numbers = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < 2.0**63)
    as_integer = np.where(whole, numbers, 0.0).astype(np.int64).view(np.uint64)
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
    bits = np.where(np.isnan(numbers), np.uint64(0x7FF8000000000000), bits)
    return np.where(whole, _absorb(state, _INTEGER, as_integer), _absorb(state, _FLOAT, bits))


def _instants(values: pa.Array, state: np.ndarray) -> np.ndarray:
    if pa.types.is_date32(values.type):
        seconds = pc.fill_null(values.cast(pa.int32()), 0).to_numpy(zero_copy_only=False).astype(np.int64) * 86_400
        return _absorb(state, _INSTANT, seconds.view(np.uint64), np.zeros(len(values), np.uint64))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(values.type, "unit", "ms")]
    counts = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    seconds, rest = counts // per_second, counts % per_second * (10**9 // per_second)
    return _absorb(state, _INSTANT, seconds.view(np.uint64), rest.view(np.uint64))


def _decimals(values: pa.Array, state: np.ndarray) -> np.ndarray:
    numbers = [value or Decimal(0) for value in values.to_pylist()]
    whole = np.array([number == int(number) and abs(number) < 2**63 for number in numbers], bool)
    integers = np.array([int(number) if fits else 0 for number, fits in zip(numbers, whole, strict=True)], np.int64)
    texts = pa.array([format(number.normalize(), "f") for number in numbers], pa.string())
    return np.where(whole, _absorb(state, _INTEGER, integers.view(np.uint64)), _bytes(texts, state))


def _bytes(values: pa.Array, state: np.ndarray) -> np.ndarray:
    held = pc.fill_null(values.cast(pa.large_binary()), b"")
    offsets = np.frombuffer(held.buffers()[1], np.int64)[held.offset : held.offset + len(held) + 1]
    lengths = np.diff(offsets)
    state = _absorb(state, _BYTES, lengths.view(np.uint64))
    if not len(held) or not lengths.max():
        return state
    data = np.frombuffer(held.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))
    starts = offsets[:-1] - offsets[0]
    active = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    at = 0
    while len(active):
        left = lengths[active] - at
        mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(8) * np.uint64(8 - np.minimum(left, 8)))
        state[active] = mix(state[active] ^ (words[starts[active] + at] & mask))
        at += 8
        active = active[left > 8]
    for i in np.flatnonzero(lengths > _LONG_BYTES):
        digest = hashlib.sha256(data[starts[i] : starts[i] + lengths[i]].tobytes()).digest()
        state[i] = mix(np.array([state[i] ^ np.uint64(int.from_bytes(digest[:8], "little"))], np.uint64))[0]
    return state
