"""What can an expression be, when only bounds of its columns are known?

Everything here says *may*, for many row groups at a time: a row group whose filter may not be true holds no row that
meets it. What is not understood may be anything, so that it is never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pipelines.data import operations as op
from pipelines.data.widening import holds


@dataclass(frozen=True, eq=False)
class Range:
    """What values an operand may have in each row group.

    Attributes
    ----------
    low, high : pa.Array
        Bounds of its values, nulls and not-a-numbers aside; null where unknown. Text stands as its bytes.
    value, null, nan : ndarray of bool
        Whether there may be values, nulls, not-a-numbers.
    """

    low: pa.Array
    high: pa.Array
    value: np.ndarray
    null: np.ndarray
    nan: np.ndarray


@dataclass(frozen=True, eq=False)
class Truth:
    """What a condition may be in each row group: three arrays of bool."""

    true: np.ndarray
    false: np.ndarray
    null: np.ndarray


Possible = Range | Truth


def possible(operand: op.Operand, columns: Mapping[str, Possible], count: int) -> Possible:
    """Work out what an operand may be in each of `count` row groups; columns that are not given may be anything."""
    match operand:
        case op.Literal():
            return _constant(operand.sample, count)
        case op.Column():
            found = columns.get(operand.name)
            if found is None:
                return anything(operand.type, count)
            return as_truth(found) if pt.is_boolean(operand.type) else found
        case op.Call():
            inputs = [possible(each, columns, count) for each in operand.operands]
            try:
                found = _call(operand, inputs)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                found = None  # bounds that Arrow can't work with say nothing
            return anything(operand.type, count) if found is None else found


def anything(type: pa.DataType, count: int) -> Possible:
    """Say nothing."""
    yes = np.ones(count, bool)
    if pt.is_boolean(type):
        return Truth(yes, yes, yes)
    return Range(pa.nulls(count, type), pa.nulls(count, type), yes, yes, yes)


def as_truth(found: Possible) -> Truth:
    """Read bounds of a boolean column as a condition."""
    if isinstance(found, Truth):
        return found
    true = found.value & _flags(found.high, unknown=True)
    return Truth(true, found.value & ~_flags(found.low, unknown=False), found.null)


def _constant(value: pa.Scalar, count: int) -> Possible:
    yes, no = np.ones(count, bool), np.zeros(count, bool)
    if pt.is_boolean(value.type):
        null, true = not value.is_valid, value.as_py() is True
        return Truth(yes if true else no, no if true or null else yes, yes if null else no)
    held = pa.repeat(value, count)
    if pt.is_string(value.type):
        held = held.cast(pa.binary())
    odd = pt.is_floating(value.type) and value.is_valid and np.isnan(value.as_py())
    return Range(held, held, yes if value.is_valid else no, no if value.is_valid else yes, yes if odd else no)


def _call(call: op.Call, inputs: list[Possible]) -> Possible | None:
    match call.function, inputs:
        case "is_null", [each]:
            some = each.true | each.false if isinstance(each, Truth) else each.value | each.nan
            return Truth(each.null, some, np.zeros_like(each.null))
        case "invert", [Truth() as each]:
            return Truth(each.false, each.true, each.null)
        case "and_kleene", [Truth() as a, Truth() as b]:
            return Truth(a.true & b.true, a.false | b.false, (a.null & (b.null | b.true)) | (b.null & a.true))
        case "or_kleene", [Truth() as a, Truth() as b]:
            return Truth(a.true | b.true, a.false & b.false, (a.null & (b.null | b.false)) | (b.null & a.false))
        case "if_else", [Truth() as test, Truth() as yes, Truth() as no]:
            true = (test.true & yes.true) | (test.false & no.true)
            false = (test.true & yes.false) | (test.false & no.false)
            return Truth(true, false, test.null | (test.true & yes.null) | (test.false & no.null))
        case "coalesce", [Truth() as first, Truth() as second]:
            true, false = first.true | (first.null & second.true), first.false | (first.null & second.false)
            return Truth(true, false, first.null & second.null)
        case "is_in", [Range() as each] if call.values is not None:
            return _is_in(each, call.values)
        case function, [Range() as a, Range() as b] if function in _COMPARISONS:
            return _compare(function, a, b)
        case function, [Range() as each] if _is_monotone(call, each.low.type):
            return _monotone(call, each)
    return None


# --- comparisons -----------------------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[[Range, Range], tuple[pa.Array, pa.Array]]] = {
    # what must hold of the bounds for it to be possibly true, possibly false
    "less": lambda a, b: (pc.less(a.low, b.high), pc.greater_equal(a.high, b.low)),
    "less_equal": lambda a, b: (pc.less_equal(a.low, b.high), pc.greater(a.high, b.low)),
    "greater": lambda a, b: (pc.greater(a.high, b.low), pc.less_equal(a.low, b.high)),
    "greater_equal": lambda a, b: (pc.greater_equal(a.high, b.low), pc.less(a.low, b.high)),
    "equal": lambda a, b: (_overlap(a, b), pc.invert(_one_value(a, b))),
    "not_equal": lambda a, b: (pc.invert(_one_value(a, b)), _overlap(a, b)),
}


def _compare(function: str, a: Range, b: Range) -> Truth:
    may = _COMPARISONS[function](_alike(a), _alike(b))
    both = a.value & b.value
    true, false = (both & _flags(each, unknown=True) for each in may)
    odd = (a.nan & (b.value | b.nan)) | (b.nan & (a.value | a.nan))  # not-a-number differs from all, itself included
    if function == "not_equal":
        true |= odd
    else:
        false |= odd
    return Truth(true, false, a.null | b.null)


def _alike(found: Range) -> Range:
    """Write bytes in one of their types."""
    if not pt.is_binary(found.low.type):
        return found
    wide = pa.large_binary()
    return Range(found.low.cast(wide), found.high.cast(wide), found.value, found.null, found.nan)


def _overlap(a: Range, b: Range) -> pa.Array:
    return pc.and_kleene(pc.less_equal(a.low, b.high), pc.less_equal(b.low, a.high))


def _one_value(a: Range, b: Range) -> pa.Array:
    """Tell whether both sides have one and the same value only."""
    return pc.and_kleene(pc.and_kleene(pc.equal(a.low, a.high), pc.equal(b.low, b.high)), pc.equal(a.low, b.low))


def _is_in(found: Range, members: pa.Array) -> Truth:
    """Membership in a list; null is no member (the grammar's `in` asks for null beforehand)."""
    found, yes = _alike(found), np.ones(len(found.low), bool)
    if pt.is_string(members.type) or pt.is_large_string(members.type):
        members = members.cast(pa.large_string()).cast(pa.large_binary())
    true = np.zeros(len(found.low), bool)
    for member in members:
        inside = pc.and_kleene(pc.less_equal(found.low, member), pc.greater_equal(found.high, member))
        true |= _flags(inside, unknown=True)
    return Truth(true & found.value, yes, np.zeros_like(yes))


def _flags(held: pa.Array, *, unknown: bool) -> np.ndarray:
    return pc.fill_null(held, unknown).to_numpy(zero_copy_only=False)


# --- functions that keep order ---------------------------------------------------------------------------------------


def _is_monotone(call: op.Call, given: pa.DataType) -> bool:
    plain = pt.is_date(given) or (pt.is_timestamp(given) and given.tz is None)
    if call.function == "cast":
        return holds(call.type, given) or (pt.is_date32(call.type) and plain)
    if call.function == "year":
        return plain
    return call.function in ("floor", "ceil")


def _monotone(call: op.Call, found: Range) -> Range:
    low, high = (pc.call_function(call.function, [bound], options=call.options) for bound in (found.low, found.high))
    return Range(low, high, found.value, found.null, found.nan)
