"""What can an expression compute? Typed trees of Arrow functions, and the rules that SQL adds to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class OperationError(ValueError):
    """An operation that does not exist for these types; the parser adds the place."""


@dataclass(frozen=True)
class Column:
    """A column; a dictionary (category) counts as its values."""

    name: str
    type: pa.DataType
    encoded: bool = False

    @property
    def sample(self) -> pa.Array:
        """An empty array of the type."""
        return pa.array([], self.type)


@dataclass(frozen=True)
class Literal:
    """A constant."""

    sample: pa.Scalar

    @property
    def type(self) -> pa.DataType:
        """Its Arrow type."""
        return self.sample.type


@dataclass(frozen=True)
class Call:
    """An Arrow compute function on operands; `values` are the members of an ``is_in``."""

    function: str
    operands: tuple[Operand, ...]
    options: Any
    type: pa.DataType
    values: pa.Array | None = None

    @cached_property
    def sample(self) -> pa.Array:
        """An empty array of the result's type."""
        return pa.array([], self.type)


Operand = Column | Literal | Call


def column(name: str, type: pa.DataType) -> Column:
    """Make the operand of a column."""
    return Column(name, type.value_type, encoded=True) if pa.types.is_dictionary(type) else Column(name, type)


def call(function: str, *operands: Operand, options: Any = None) -> Operand:
    """Apply an Arrow function; what hangs on constants only is computed now.

    Raises
    ------
    OperationError
        Where Arrow has no such function for the operands' types.
    """
    try:
        sample = pc.call_function(function, [operand.sample for operand in operands], options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError, ValueError) as error:
        types = " and ".join(str(operand.type) for operand in operands)
        cause = "" if isinstance(error, pa.ArrowNotImplementedError) else f" ({str(error).splitlines()[0]})"
        raise OperationError(f"{function} does not work on {types}{cause}") from error
    if isinstance(sample, pa.Scalar):
        return Literal(sample)
    return Call(function, operands, options, sample.type)


def evaluate(operand: Operand, columns: Mapping[str, pa.Array]) -> pa.Array | pa.Scalar:
    """Compute an operand over columns of equal length; constants stay scalars."""
    match operand:
        case Literal():
            return operand.sample
        case Column():
            held = columns[operand.name]
            return held.dictionary_decode() if pa.types.is_dictionary(held.type) else held
        case Call():
            inputs = [evaluate(each, columns) for each in operand.operands]
            return pc.call_function(operand.function, inputs, options=operand.options)


def to_arrow(operand: Operand) -> pc.Expression:
    """Write an operand as an Arrow expression, for readers that push filters down."""
    match operand:
        case Literal():
            return pc.scalar(operand.sample)
        case Column():
            return pc.field(operand.name).cast(operand.type) if operand.encoded else pc.field(operand.name)
        case Call(function="cast"):
            return to_arrow(operand.operands[0]).cast(operand.type)
        case Call():
            inputs = [to_arrow(each) for each in operand.operands]
            if operand.options is None:
                return getattr(pc, operand.function)(*inputs)
            return getattr(pc, operand.function)(*inputs, options=operand.options)


# --- rules of SQL ----------------------------------------------------------------------------------------------------


def arithmetic(function: str, left: Operand, right: Operand) -> Operand:
    """Add, subtract, multiply (integers as 64-bit, overflow is an error) or divide (always as floats)."""
    if function == "divide":
        return call("divide", cast(left, pa.float64()), cast(right, pa.float64()))
    return call(f"{function}_checked", _widened(left), _widened(right))


def compare(function: str, left: Operand, right: Operand) -> Operand:
    """Compare; text beside a date, a time or a timestamp is read as one."""
    left, right = _read_as(left, right.type), _read_as(right, left.type)
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        raise OperationError("nothing compares with None; write is_null(x) or `x is None`")
    return call(function, left, right)


def is_in(operand: Operand, members: Sequence[Operand]) -> Operand:
    """Membership in a list of constants; null stays null, as in SQL (Arrow's own gives false)."""
    values = []
    for member in members:
        read = _read_as(member, operand.type)
        if not isinstance(read, Literal):
            raise OperationError("`in` takes a list of constants")
        if not read.sample.is_valid:
            raise OperationError("a list can't hold None; add `or is_null(x)`")
        values.append(read.sample)
    try:
        held = pa.array([value.as_py() for value in values], None if values else operand.type)
        if held.type != operand.type and not _both_numbers(held.type, operand.type):
            held = held.cast(operand.type)
        elif held.type != operand.type:
            operand, held = cast(operand, pa.float64()), held.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise OperationError(f"the list's values do not compare with {operand.type}") from error
    member_of = call("is_in", operand, options=pc.SetLookupOptions(value_set=held))
    if isinstance(member_of, Call):
        member_of = replace(member_of, values=held)
    return call("if_else", call("is_null", operand), Literal(pa.scalar(None, pa.bool_())), member_of)


def choose(condition: Operand, yes: Operand, no: Operand) -> Operand:
    """`yes` where the condition is true, `no` where it is false or null (SQL's CASE)."""
    return call("if_else", call("coalesce", condition, Literal(pa.scalar(False))), yes, no)


def cast(operand: Operand, type: pa.DataType) -> Operand:
    """Cast; a value that does not fit is an error when the data are read."""
    if operand.type == type:
        return operand
    return call("cast", operand, options=pc.CastOptions.safe(type))


def _widened(operand: Operand) -> Operand:
    narrow = pa.types.is_integer(operand.type) and not pa.types.is_uint64(operand.type)
    return cast(operand, pa.int64()) if narrow else operand


def _read_as(operand: Operand, type: pa.DataType) -> Operand:
    """Read a text constant as a value of a temporal `type`; anything else stays as it is."""
    if not (isinstance(operand, Literal) and pa.types.is_string(operand.type) and pa.types.is_temporal(type)):
        return operand
    text = operand.sample.as_py()
    try:
        if pa.types.is_timestamp(type) and type.tz is not None:
            return Literal(pc.assume_timezone(operand.sample.cast(pa.timestamp(type.unit)), type.tz))
        return Literal(operand.sample.cast(type))
    except pa.ArrowInvalid as error:
        raise OperationError(f"{text!r} is no {type}; write it like '2013-07-31' or '2013-07-31 18:05:00'") from error


def _both_numbers(one: pa.DataType, other: pa.DataType) -> bool:
    return all(pa.types.is_integer(each) or pa.types.is_floating(each) for each in (one, other))


# --- functions -------------------------------------------------------------------------------------------------------

Builder = Callable[..., Operand]


def _plain(function: str, options: Any = None) -> Builder:
    def build(*operands: Operand) -> Operand:
        return call(function, *operands, options=options)

    return build


def _with_text(function: str) -> Builder:
    def build(operand: Operand, text: Operand) -> Operand:
        if not (isinstance(text, Literal) and pa.types.is_string(text.type)):
            raise OperationError("the second argument is a text in quotes")
        return call(function, operand, options=pc.MatchSubstringOptions(text.sample.as_py()))

    return build


def _cast_to(operand: Operand, name: Operand) -> Operand:
    try:
        return cast(operand, pa.type_for_alias(name.sample.as_py() if isinstance(name, Literal) else ""))
    except (ValueError, AttributeError) as error:
        if isinstance(error, OperationError):
            raise
        raise OperationError("the second argument is a type in quotes, like 'int32' or 'timestamp[us]'") from error


FUNCTIONS: dict[str, tuple[int, int, Builder]] = {
    # name: fewest and most arguments, what it builds
    "is_null": (1, 1, _plain("is_null")),
    "is_nan": (1, 1, _plain("is_nan")),
    "is_finite": (1, 1, _plain("is_finite")),
    "coalesce": (1, 16, _plain("coalesce")),
    "if_else": (3, 3, choose),
    "cast": (2, 2, _cast_to),
    "year": (1, 1, _plain("year")),
    "month": (1, 1, _plain("month")),
    "day": (1, 1, _plain("day")),
    "hour": (1, 1, _plain("hour")),
    "minute": (1, 1, _plain("minute")),
    "second": (1, 1, _plain("second")),
    "weekday": (1, 1, _plain("day_of_week", pc.DayOfWeekOptions(count_from_zero=True, week_start=1))),
    "day_of_year": (1, 1, _plain("day_of_year")),
    "date": (1, 1, lambda operand: cast(operand, pa.date32())),
    "days_between": (2, 2, _plain("days_between")),
    "seconds_between": (2, 2, _plain("seconds_between")),
    "abs": (1, 1, lambda operand: call("abs_checked", _widened(operand))),
    "round": (1, 1, _plain("round")),
    "floor": (1, 1, _plain("floor")),
    "ceil": (1, 1, _plain("ceil")),
    "sqrt": (1, 1, _plain("sqrt")),
    "exp": (1, 1, _plain("exp")),
    "log": (1, 1, _plain("ln")),
    "log1p": (1, 1, _plain("log1p")),
    "sin": (1, 1, _plain("sin")),
    "cos": (1, 1, _plain("cos")),
    "least": (1, 16, _plain("min_element_wise", pc.ElementWiseAggregateOptions(skip_nulls=True))),
    "greatest": (1, 16, _plain("max_element_wise", pc.ElementWiseAggregateOptions(skip_nulls=True))),
    "lower": (1, 1, _plain("utf8_lower")),
    "upper": (1, 1, _plain("utf8_upper")),
    "trim": (1, 1, _plain("utf8_trim_whitespace")),
    "length": (1, 1, _plain("utf8_length")),
    "starts_with": (2, 2, _with_text("starts_with")),
    "ends_with": (2, 2, _with_text("ends_with")),
    "contains": (2, 2, _with_text("match_substring")),
    "matches": (2, 2, _with_text("match_substring_regex")),
}
