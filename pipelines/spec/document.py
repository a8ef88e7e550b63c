"""YAML text to plain values, remembering on which line each key stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from pipelines.errors import Fault, SpecError

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed spec: its plain values and the line of every key and item, counted from one."""

    name: str
    values: Any
    lines: dict[Path, int]

    def place(self, path: Path) -> str:
        """Name a place: its dotted path, and its line (or that of the nearest part that is written down)."""
        at = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        return dotted(path) + (f" (line {at})" if at else "")


def dotted(path: Path) -> str:
    """Write a path as people do: ``features[0].columns[1]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "(the whole spec)"


def parse(text: str, name: str) -> Document:
    """Parse YAML; keys written twice are faults, since the first of them would be lost without a word.

    Raises
    ------
    SpecError
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except ValueError as error:
        raise SpecError([Fault("the file", f"can't be read: {error}", "Mend the value")], on=name) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        problem = getattr(error, "problem", None) or str(error)
        raise SpecError([Fault(where, f"not YAML: {problem}", "Mend the syntax")], on=name) from None
    lines: dict[Path, int] = {}
    faults: list[Fault] = []
    if node is not None:
        try:
            _walk(node, (), lines, faults)
        except RecursionError:
            raise SpecError(
                [Fault("the file", "an alias stands inside what it names", "Write it out")], on=name
            ) from None
    if faults:
        raise SpecError(faults, on=name)
    return Document(name, values, lines)


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], faults: list[Fault]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            if below in lines:
                first = lines[below]
                fault = f"written twice, on line {first} and on line {key.start_mark.line + 1}"
                faults.append(Fault(dotted(below), fault, "Keep one of them"))
            lines[below] = key.start_mark.line + 1
            _walk(value, below, lines, faults)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, faults)
