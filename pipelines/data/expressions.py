"""What does a `filter:` or `derive:` expression mean? A small safe grammar, read by Python's parser, run by Arrow.

Nothing of it is ever executed by Python: the parsed text becomes a tree of Arrow functions with known types.
Logic has three values as in SQL: null stays null, and a filter keeps only the rows that are true.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data import operations as op
from pipelines.errors import DataError, NotFoundError, UsageError

LONGEST = 10_000
"""Characters; longer texts are refused before Python's parser sees them."""

_ARITHMETIC = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_COMPARISON = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    Parameters
    ----------
    text : str
    columns : tuple of str
        The columns that it reads, in order of first use.
    tree : ast.expr
        Python's syntax tree of the text, checked against the grammar.
    operand : Operand
        The same with types, to be computed.
    """

    text: str
    columns: tuple[str, ...]
    tree: ast.expr
    operand: op.Operand

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the result."""
        return self.operand.type

    @cached_property
    def arrow(self) -> pc.Expression:
        """The same as an Arrow expression, to push down into readers."""
        return op.to_arrow(self.operand)

    def evaluate(self, batch: pa.RecordBatch | pa.Table | Mapping[str, pa.Array], rows: int | None = None) -> pa.Array:
        """Compute it over a batch.

        Parameters
        ----------
        batch : RecordBatch, Table or mapping of name to Array
        rows : int, optional
            Length of the result; needed only where `batch` is an empty mapping.

        Raises
        ------
        DataError
            A value that can't be computed: an overflow, a text that is no number.
        """
        held: dict[str, pa.Array] = {name: batch[name] for name in self.columns}
        if isinstance(batch, pa.Table):
            held = {name: column.combine_chunks() for name, column in held.items()}
        if not isinstance(batch, Mapping):
            rows = batch.num_rows
        try:
            result = op.evaluate(self.operand, held)
        except pa.ArrowInvalid as error:
            raise DataError("a value can't be computed", on=self.text, found=str(error).splitlines()[0]) from error
        if isinstance(result, pa.Scalar):
            return pa.repeat(result, len(next(iter(held.values()))) if rows is None else rows)
        return result


def parse_expression(text: str, schema: pa.Schema, *, on: str = "expression") -> Expression:
    """Parse an expression over the columns of `schema`.

    Arithmetic, comparisons (chained too), ``and or not``, ``in (…)``, ``is None``, ``a if b else c``, constants and
    the functions of `operations.FUNCTIONS`. Text beside a date or a timestamp is read as one. A column whose name is
    no Python name is written ``col("its name")``.

    Parameters
    ----------
    text : str
    schema : Schema
    on : str
        Where the expression stands, for messages: ``filter``, ``derive.late``.

    Raises
    ------
    UsageError
        With the place of the fault: not of the grammar, or an operation that does not work on these types.
    NotFoundError
        A column or a function that does not exist, with the nearest names.
    """
    parser = _Parser(text, schema, on)
    tree = parser.syntax()
    operand = parser.typed(tree)
    return Expression(text, tuple(parser.columns), tree, operand)


def parse_filter(text: str, schema: pa.Schema, *, on: str = "filter") -> Expression:
    """Parse an expression that must be true or false for a row."""
    expression = parse_expression(text, schema, on=on)
    if not pa.types.is_boolean(expression.type):
        raise UsageError("a filter says true or false", on=f"{on}: {text}", expected="bool", found=str(expression.type))
    return expression


def derived_schema(schema: pa.Schema, derive: Iterable[tuple[str, str]]) -> pa.Schema:
    """`schema` with the derived columns appended; each may use those before it.

    Raises
    ------
    UsageError
        An expression with a fault, or a name that is taken.
    """
    for name, text in derive:
        if name in schema.names:
            raise UsageError("there is such a column already", on=f"derive.{name}", remedy="Choose another name.")
        schema = schema.append(pa.field(name, parse_expression(text, schema, on=f"derive.{name}").type))
    return schema


class _Parser:
    """One visit of Python's syntax tree; every method turns one kind of node into an operand."""

    def __init__(self, text: str, schema: pa.Schema, on: str) -> None:
        self._text, self._schema, self._on = text, schema, on
        self._types = {field.name: field.type for field in schema}
        self.columns: dict[str, None] = {}

    def syntax(self) -> ast.expr:
        if len(self._text) > LONGEST:
            raise UsageError("the expression is too long", on=self._on, expected=f"at most {LONGEST} characters")
        try:
            return ast.parse(self._text.strip(), mode="eval").body
        except SyntaxError as error:
            place = f" at character {error.offset}" if error.offset else ""
            raise UsageError(f"{self._text!r} can't be parsed{place}: {error.msg}", on=self._on) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise UsageError(f"the expression can't be parsed: {error}", on=self._on) from error

    def typed(self, tree: ast.expr) -> op.Operand:
        try:
            return self._operand(tree)
        except RecursionError as error:
            raise UsageError("the expression is nested too deeply", on=self._on) from error

    def _operand(self, node: ast.expr) -> op.Operand:
        try:
            return self._visit(node)
        except op.OperationError as error:
            raise self._refused(node, str(error)) from error

    def _visit(self, node: ast.expr) -> op.Operand:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return self._constant(node, value)
            case ast.Name(id=name):
                return self._column(node, name)
            case ast.BoolOp(op=connective, values=values):
                function = "and_kleene" if isinstance(connective, ast.And) else "or_kleene"
                return self._folded(function, [self._operand(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return op.call("invert", self._operand(inner))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return op.arithmetic("multiply", self._operand(inner), op.Literal(pa.scalar(-1)))
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return self._operand(inner)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
                return op.arithmetic(_ARITHMETIC[type(sign)], self._operand(left), self._operand(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                return op.choose(self._operand(test), self._operand(body), self._operand(other))
            case ast.Compare():
                return self._comparison(node)
            case ast.Call():
                return self._call(node)
            case _:
                raise self._refused(node, f"{ast.unparse(node)!r} is not part of the grammar of expressions")

    def _constant(self, node: ast.expr, value: bool | int | float | str | None) -> op.Operand:
        try:
            return op.Literal(pa.scalar(value))
        except (OverflowError, pa.ArrowInvalid):
            raise self._refused(node, f"{value} does not fit into 64 bits") from None

    def _column(self, node: ast.expr, name: str) -> op.Operand:
        if name not in self._types:
            known = self._schema.names
            raise NotFoundError.among("column", name, known, on=f"{self._on}: {self._text!r} {_place(node)}")
        self.columns.setdefault(name)
        return op.column(name, self._types[name])

    def _folded(self, function: str, operands: list[op.Operand]) -> op.Operand:
        result = operands[0]
        for operand in operands[1:]:
            result = op.call(function, result, operand)
        return result

    def _comparison(self, node: ast.Compare) -> op.Operand:
        parts = []
        for left, sign, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            parts.append(self._one_comparison(left, sign, right))
        return self._folded("and_kleene", parts)

    def _one_comparison(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> op.Operand:
        operand = self._operand(left)
        if isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                raise self._refused(right, "`in` takes a list: carrier in ('AA', 'UA')")
            found = op.is_in(operand, [self._operand(member) for member in right.elts])
            return found if isinstance(sign, ast.In) else op.call("invert", found)
        if isinstance(sign, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused(right, "`is` takes None only; use == for values")
            null = op.call("is_null", operand)
            return null if isinstance(sign, ast.Is) else op.call("invert", null)
        return op.compare(_COMPARISON[type(sign)], operand, self._operand(right))

    def _call(self, node: ast.Call) -> op.Operand:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self._refused(node, "functions are called as name(argument, …)")
        name = node.func.id
        if name == "col":
            if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                return self._column(node, node.args[0].value)
            raise self._refused(node, 'col takes one name in quotes: col("a name")')
        if name not in op.FUNCTIONS:
            known = [*op.FUNCTIONS, "col"]
            raise NotFoundError.among("function", name, known, on=f"{self._on}: {self._text!r} {_place(node)}")
        fewest, most, build = op.FUNCTIONS[name]
        if not fewest <= len(node.args) <= most:
            expected = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise self._refused(node, f"{name} takes {expected} arguments, not {len(node.args)}")
        return build(*(self._operand(argument) for argument in node.args))

    def _refused(self, node: ast.expr, reason: str) -> UsageError:
        return UsageError(f"{self._text!r} {_place(node)}: {reason}", on=self._on)


def _place(node: ast.expr) -> str:
    return f"at character {node.col_offset + 1}"
