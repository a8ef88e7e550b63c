"""The user's own modules, packages and files, packed into one small archive named by its content.

The digest depends on names and bytes only: the same code gives the same digest on any machine at any time.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import CodeError

MIB = 2**20
DEFAULT_LIMIT_BYTES = 64 * MIB
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class CodeFile:
    """One packed file: where it lies below the archive's root, its size in bytes and its SHA-256 (hex)."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class CodeArchive:
    """Packed code. ``data`` is a zip file; ``digest`` is the SHA-256 over the paths and contents of its files."""

    digest: str
    data: bytes
    files: tuple[CodeFile, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        """Top-level names that can be imported from it."""
        tops = {file.path.partition("/")[0] for file in self.files if file.path.endswith(".py")}
        return tuple(sorted(top.removesuffix(".py") for top in tops))

    @classmethod
    def from_bytes(cls, data: bytes) -> CodeArchive:
        """Read an archive back. Raises `CodeError` when it is not one of ours or damaged."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                contents = {name: archive.read(name) for name in archive.namelist()}
        except (zipfile.BadZipFile, EOFError) as error:
            raise CodeError(f"not a code archive: {error}") from error
        files = _describe(contents)
        return cls(_digest(files), data, files)

    def unpack(self, folder: Path) -> None:
        """Write the files below `folder`."""
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            archive.extractall(folder)


def pack_code(entries: Sequence[str], base: str | Path = ".", *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> CodeArchive:
    """Pack modules, packages and files.

    Parameters
    ----------
    entries : sequence of str
        Each a path relative to `base` (``stages/``, ``my_code.py``, ``lookup.csv``) or a module's dotted name
        (``my_package.transforms``). Python code keeps the name it is imported by: its root is the first folder upwards
        without ``__init__.py``, as in pytest, and the ``__init__.py`` of the packages around it come along. Other
        files keep their path below `base`. Compiled and hidden files are left out.
    base : path
        The folder that entries are relative to.
    limit_bytes : int
        The most that all files together may take, unpacked.

    Raises
    ------
    CodeError
        An entry is not there, all is too large, or two entries claim one name.
    """
    folder = Path(base).expanduser().resolve()
    sources: dict[str, Path] = {}
    for entry in entries:
        found = dict(_files(entry, folder))
        if not found:
            raise CodeError("there is nothing to pack in it", on=entry, found="only hidden or compiled files")
        for name, path in found.items():
            if sources.setdefault(name, path) != path:
                raise CodeError(
                    f"two files would be packed as {name!r}", on=entry, found=f"{sources[name]} and {path}",
                    remedy="Rename one of them.",
                )  # fmt: skip
    _check_size(sources, limit_bytes)
    contents = {name: _read(path) for name, path in sources.items()}
    files = _describe(contents)
    return CodeArchive(_digest(files), _zip(contents), files)


def _files(entry: str, base: Path) -> Iterator[tuple[str, Path]]:
    """Pairs of (name in the archive, path here) for one entry."""
    path = _locate(entry, base)
    is_code = path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    root = _import_root(path) if is_code else base
    if not path.is_relative_to(root):
        raise CodeError("a file that is not Python code must lie below the base folder", on=entry, expected=str(base))
    if is_code:
        for package in path.relative_to(root).parents:
            if (root / package / "__init__.py").is_file() and package != Path():
                yield (package / "__init__.py").as_posix(), root / package / "__init__.py"
    for file in _walk(path) if path.is_dir() else [path]:
        yield file.relative_to(root).as_posix(), file


def _locate(entry: str, base: Path) -> Path:
    dotted = base / entry.replace(".", "/")
    candidates = [base / entry, base / f"{entry}.py", dotted, dotted.with_name(f"{dotted.name}.py")]
    for path in candidates:
        if path.exists():
            return Path(os.path.normpath(path))  # not resolved: a link has the name that it is imported by
    raise CodeError(
        "there is no such module, package or file", on=entry, expected=f"it below {base}",
        remedy="Entries of `code` are relative to the folder of the spec.",
    )  # fmt: skip


def _import_root(path: Path) -> Path:
    parent = path.parent
    while (parent / "__init__.py").is_file():
        parent = parent.parent
    return parent


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            # A link to a folder may lead back up: what it leads to must be an entry of its own.
            if not path.is_symlink():
                yield from _walk(path)
        elif path.suffix not in (".pyc", ".pyo"):
            yield path


def _check_size(sources: dict[str, Path], limit_bytes: int) -> None:
    sizes = {name: path.stat().st_size if path.exists() else 0 for name, path in sources.items()}
    total = sum(sizes.values())
    if total > limit_bytes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        listed = ", ".join(f"{name} ({sizes[name] / MIB:.1f} MiB)" for name in largest)
        raise CodeError(
            "the code is too large to be sent to every worker", on="code",
            expected=f"at most {limit_bytes / MIB:g} MiB",
            found=f"{total / MIB:.1f} MiB, the largest: {listed}", remedy="Keep data on the object store.",
        )  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CodeError(f"a file can't be read ({error.strerror})", on=str(path)) from error


def _describe(contents: dict[str, bytes]) -> tuple[CodeFile, ...]:
    return tuple(CodeFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(contents.items()))


def _digest(files: Sequence[CodeFile]) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.sha256} {file.path}\n".encode())
    return whole.hexdigest()


def _zip(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(contents):
            information = zipfile.ZipInfo(name, _EPOCH)
            information.external_attr = 0o644 << 16
            archive.writestr(information, contents[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
