"""From YAML, a file or a mapping to a `PipelineSpec`, with every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipelines.errors import Fault, SpecError, UsageError
from pipelines.spec.combinations import impossible
from pipelines.spec.document import Document, parse
from pipelines.spec.faults import faults_of
from pipelines.spec.pipeline import PipelineSpec


def load_spec(source: str | Path | Mapping[str, Any] | PipelineSpec) -> PipelineSpec:
    """Read and check a spec.

    Parameters
    ----------
    source : path, mapping or PipelineSpec
        A YAML file, the same keys as a mapping, or a spec made of objects (whose combinations are checked then).

    Raises
    ------
    SpecError
        All faults at once, each with its path (and line) and what to do.
    UsageError
        The file can't be read.
    """
    if isinstance(source, PipelineSpec):
        name = f"spec {source.name!r}"
        _refuse(impossible(_sections(source), Document(name, source.model_dump(mode="json"), {})), name)
        return source
    if isinstance(source, Mapping):
        return check_document(Document("spec", dict(source), {}))
    return check_document(parse(_read(Path(source)), str(source)))


def check_document(document: Document) -> PipelineSpec:
    """Validate a parsed document: section by section, so that a fault in one does not hide those of another."""
    if not isinstance(document.values, Mapping):
        _refuse([Fault("(the whole spec)", "not a mapping of keys", "Start with name:, data:, label:")], document.name)
    values = _with_cluster_file(document)
    document = Document(document.name, values, document.lines)
    try:
        spec = PipelineSpec.model_validate(values)
    except ValidationError as error:
        faults = faults_of(error, document, PipelineSpec)
        _refuse(faults + impossible(_valid_sections(values), document), document.name)
        raise AssertionError("a refused spec went on") from error
    _refuse(impossible(_sections(spec), document), document.name)
    return spec


def _refuse(faults: list[Fault], name: str) -> None:
    if faults:
        raise SpecError(faults, on=name)


def _sections(spec: PipelineSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in PipelineSpec.model_fields}


def _valid_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Build the sections that are right on their own, so that their combinations can be judged all the same."""
    sections: dict[str, Any] = {}
    for name, field in PipelineSpec.model_fields.items():
        if name not in values:
            if not field.is_required():
                sections[name] = field.default
            continue
        try:
            sections[name] = _adapter(field.annotation).validate_python(values[name])
        except ValidationError:
            continue
    return sections


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _with_cluster_file(document: Document) -> dict[str, Any]:
    """Replace `cluster: FILE` by what the file holds."""
    values = dict(document.values)
    reference = values.get("cluster")
    if isinstance(reference, str):
        path = Path(reference)
        if not path.is_file():
            _refuse([Fault(document.place(("cluster",)), f"no such file: {reference!r}")], document.name)
        values["cluster"] = parse(_read(path), str(path)).values
    return values


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = sorted(str(p) for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        remedy = f"There are {', '.join(near[:5])}." if near else "Check the path and the working directory."
        raise UsageError("no such file", on=str(path), remedy=remedy) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't be read: {error}", on=str(path), remedy="Give a YAML text file.") from None
