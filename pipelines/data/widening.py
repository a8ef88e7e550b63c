"""Which type holds the values of all these types without losing any?

The answer is a function of the *set* of types, never of an order in which they are met: that is why `widen` takes them
all at once. (Pairwise joins would not be associative: int8 with uint64 has no integer type, but float64 takes both.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pt

_UNITS = ("s", "ms", "us", "ns")


def widen(found: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the narrowest type that holds the values of all types, or None when there is none.

    - null goes with everything;
    - integers widen to the narrowest integer that holds both ranges; unsigned 64 bit and signed integers have none;
    - integers and floats give float64 (float32 up to 16 bit): beyond 2**53 a cast fails, it does not round;
    - decimals keep all digits of both sides; with integers too; with floats they give float64 (rounded);
    - timestamps take the finest unit; two zones give UTC; a zone and none do not go together; dates become timestamps;
    - string and large_string give large_string, the same for binary; a string and bytes do not go together;
    - a dictionary and its plain type give the plain type, dictionaries of several types one of the wider type;
    - structs and lists widen by their parts.
    """
    types = _distinct(t for t in found if not pt.is_null(t))
    if not types:
        return pa.null()
    if len(types) == 1:
        return _plain_nested(types[0])
    for belongs, join in _FAMILIES:
        if all(belongs(t) for t in types):
            return join(types)
    if any(pt.is_dictionary(t) for t in types):
        return widen(t.value_type if pt.is_dictionary(t) else t for t in types)
    return None


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Tell whether `wide` is what widening both gives: casting to it keeps values and their order."""
    return bool(widen([wide, narrow]) == wide)


def castable(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Tell whether Arrow can cast one type to the other at all; single values may still fail."""
    try:
        pa.array([], narrow).cast(wide)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _distinct(types: Iterable[pa.DataType]) -> list[pa.DataType]:
    return list({str(t): t for t in types}.values())


# --- numbers ---------------------------------------------------------------------------------------------------------


def _join_numbers(types: Sequence[pa.DataType]) -> pa.DataType | None:
    integers = [t for t in types if pt.is_integer(t)]
    floats = [t for t in types if pt.is_floating(t)]
    if not floats:
        return _join_integers(integers) if len(integers) == len(types) else _join_decimals(types)
    if len(integers) + len(floats) < len(types) or any(t.bit_width > 16 for t in integers):
        return pa.float64()
    bits = max(t.bit_width for t in floats)
    return {16: pa.float32() if integers else pa.float16(), 32: pa.float32(), 64: pa.float64()}[bits]


def _join_integers(types: Sequence[pa.DataType]) -> pa.DataType | None:
    signed = [t.bit_width for t in types if pt.is_signed_integer(t)]
    unsigned = [t.bit_width for t in types if pt.is_unsigned_integer(t)]
    if not signed:
        return {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[max(unsigned)]
    bits = max([*signed, *(2 * width for width in unsigned)])
    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def _join_decimals(types: Sequence[pa.DataType]) -> pa.DataType | None:
    decimals = [t for t in types if pt.is_decimal(t)]
    scale = max(t.scale for t in decimals)
    whole = max([t.precision - t.scale for t in decimals] + [_digits(t) for t in types if pt.is_integer(t)])
    if whole + scale > 76:
        return None
    return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else pa.decimal256(whole + scale, scale)


def _digits(integer: pa.DataType) -> int:
    return 20 if integer == pa.uint64() else {8: 3, 16: 5, 32: 10, 64: 19}[integer.bit_width]


# --- time ------------------------------------------------------------------------------------------------------------


def _join_dates(types: Sequence[pa.DataType]) -> pa.DataType | None:
    stamps = [t for t in types if pt.is_timestamp(t)]
    if not stamps:
        return pa.date32()
    zones = {t.tz for t in stamps} | ({None} if len(stamps) < len(types) else set())
    if len(zones) > 1 and None in zones:
        return None
    return pa.timestamp(_finest(stamps), zones.pop() if len(zones) == 1 else "UTC")


def _join_times(types: Sequence[pa.DataType]) -> pa.DataType:
    unit = _finest(types)
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _join_durations(types: Sequence[pa.DataType]) -> pa.DataType:
    return pa.duration(_finest(types))


def _finest(types: Sequence[pa.DataType]) -> str:
    return max((t.unit for t in types), key=_UNITS.index)


# --- text and bytes --------------------------------------------------------------------------------------------------


def _join_strings(types: Sequence[pa.DataType]) -> pa.DataType:
    return pa.large_string() if any(pt.is_large_string(t) for t in types) else pa.string()


def _join_binaries(types: Sequence[pa.DataType]) -> pa.DataType:
    return pa.large_binary() if any(pt.is_large_binary(t) for t in types) else pa.binary()


def _is_string(t: pa.DataType) -> bool:
    return pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t)


def _is_binary(t: pa.DataType) -> bool:
    return pt.is_binary(t) or pt.is_large_binary(t) or pt.is_binary_view(t) or pt.is_fixed_size_binary(t)


# --- dictionaries and nested types -----------------------------------------------------------------------------------


def _join_dictionaries(types: Sequence[pa.DataType]) -> pa.DataType | None:
    index, value = widen(t.index_type for t in types), widen(t.value_type for t in types)
    if index is None or value is None:
        return None
    return pa.dictionary(index, value, ordered=all(t.ordered for t in types))


def _join_structs(types: Sequence[pa.DataType]) -> pa.DataType | None:
    parts: dict[str, list[pa.DataType]] = {}
    orders = {tuple(field.name for field in t) for t in types}
    if any(len(set(names)) < len(names) for names in orders):
        return None
    for field in (field for t in types for field in t):
        parts.setdefault(field.name, []).append(field.type)
    names = orders.pop() if len(orders) == 1 else sorted(parts)
    joined = {name: widen(parts[name]) for name in names}
    return None if None in joined.values() else pa.struct(joined)


def _join_lists(types: Sequence[pa.DataType]) -> pa.DataType | None:
    value = widen(t.value_type for t in types)
    if value is None:
        return None
    sizes = {t.list_size if pt.is_fixed_size_list(t) else -1 for t in types}
    if len(sizes) == 1 and -1 not in sizes:
        return pa.list_(value, sizes.pop())
    return pa.large_list(value) if any(pt.is_large_list(t) for t in types) else pa.list_(value)


def _join_maps(types: Sequence[pa.DataType]) -> pa.DataType | None:
    key, item = widen(t.key_type for t in types), widen(t.item_type for t in types)
    return None if key is None or item is None else pa.map_(key, item)


def _is_list(t: pa.DataType) -> bool:
    return pt.is_list(t) or pt.is_large_list(t) or pt.is_fixed_size_list(t)


def _plain_nested(t: pa.DataType) -> pa.DataType:
    """Forget nullability, field names and metadata inside of a nested type, as joining it with itself does."""
    for belongs, join in _NESTED:
        if belongs(t):
            return join([t]) or t
    return t


_NESTED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Sequence[pa.DataType]], pa.DataType | None]], ...] = (
    (pt.is_struct, _join_structs),
    (_is_list, _join_lists),
    (pt.is_map, _join_maps),
)

_FAMILIES = (
    (lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t), _join_numbers),
    (lambda t: pt.is_date(t) or pt.is_timestamp(t), _join_dates),
    (pt.is_time, _join_times),
    (pt.is_duration, _join_durations),
    (_is_string, _join_strings),
    (_is_binary, _join_binaries),
    (pt.is_dictionary, _join_dictionaries),
    *_NESTED,
)
