"""Which files does a source name?

A source is a folder, a file, a glob or a URL, or several of them in one store. Names that start with ``.`` or ``_`` are
hidden (``_SUCCESS``, ``_temporary``, ``_metadata``, ``.crc`` files), except for partition folders like ``_day=3``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile

import pyarrow.fs as pafs

from pipelines.errors import NotFoundError, UsageError
from pipelines.storage import open_filesystem, open_store
from pipelines.storage.faults import storage_errors
from pipelines.storage.urls import Url, parse_url


@dataclass(frozen=True)
class ListedFile:
    """A file as a listing shows it; `path` is relative to the listing's root, `etag` empty where the store has none."""

    path: str
    size: int
    etag: str
    mtime_ns: int


@dataclass(frozen=True)
class Listing:
    """What is at a source: `root` is a URL or absolute path; `files` and `hidden` are sorted by path.

    Attributes
    ----------
    hidden : tuple of ListedFile
        Files with a hidden part in their path: logs of tables, commit manifests, leftovers.
    """

    root: str
    files: tuple[ListedFile, ...]
    hidden: tuple[ListedFile, ...]


def list_source(source: str | Sequence[str]) -> Listing:
    """List the files that a source names.

    The root is the folder that `source` names. For a file, a glob or several sources it is the deepest folder above all
    of them that is not below a ``key=value`` folder, so that those stay in the paths.

    Raises
    ------
    NotFoundError
        Nothing there, or nothing that a glob matches; the nearest names are in the remedy.
    UsageError
        Sources in several stores.
    StorageError
        The store can't be reached, a folder can't be read.
    """
    texts = [source] if isinstance(source, str) else list(source)
    stores = {(url.scheme, url.authority) for url in map(parse_url, texts)}
    if len(stores) > 1:
        raise UsageError("the sources of one dataset lie in one store", found=", ".join(sorted(texts)))
    places = [_place(text) for text in texts]
    single_folder = isinstance(source, str) and not places[0].pattern and not places[0].is_file
    root = _parts(places[0].url) if single_folder else _common_root(places)
    found: dict[str, ListedFile] = {}
    for place in places:
        above = _parts(place.url)[len(root) :]
        for each in _files_of(place):
            path = "/".join([*above, each.path])
            found[path] = ListedFile(path, each.size, each.etag, each.mtime_ns)
    explicit = {"/".join([*_parts(place.url)[len(root) :], place.name]) for place in places if place.is_file}
    above_all = {"/".join(_parts(place.url)[len(root) :]) for place in places} - {""}
    files: list[ListedFile] = []
    hidden: list[ListedFile] = []
    for path, each in sorted(found.items()):
        shown = path in explicit or not _is_hidden(_below(path, above_all))
        (files if shown else hidden).append(each)
    return Listing(_url(places[0].url, root), tuple(files), tuple(hidden))


@dataclass(frozen=True)
class _Place:
    """One source: an existing folder `url`; in it a file `name`, or a glob `pattern`, or everything."""

    text: str
    url: Url
    name: str = ""
    pattern: tuple[str, ...] = ()

    @property
    def is_file(self) -> bool:
        return bool(self.name)


def _place(text: str) -> _Place:
    url = parse_url(text)
    kind = _kind(url)
    parts = _parts(url)
    if kind == "folder":
        return _Place(text, url)
    if kind == "file":
        return _Place(text, _at(url, parts[:-1]), name=parts[-1])
    plain = list(takewhile(lambda part: not _is_magic(part), parts))
    if len(plain) == len(parts):
        raise _missing(text, url)
    folder = _at(url, plain)
    if _kind(folder) != "folder":
        raise _missing(text, folder)
    return _Place(text, folder, pattern=tuple(parts[len(plain) :]))


def _files_of(place: _Place) -> list[ListedFile]:
    if place.is_file:
        return [_describe(place.url, place.name)]
    found = [each for each in _walk(place) if not place.pattern or _matches(each.path.split("/"), place.pattern)]
    if place.pattern and not found:
        known = sorted({each.path.partition("/")[0] for each in _walk(_Place(place.text, place.url))})
        pattern = "/".join(place.pattern)
        raise NotFoundError.among("file that matches", pattern, known, on=str(place.url))
    return found


# --- paths -----------------------------------------------------------------------------------------------------------


def _parts(url: Url) -> list[str]:
    return [part for part in url.path.split("/") if part]


def _at(url: Url, parts: Sequence[str]) -> Url:
    path = "/".join(parts)
    return Url(url.scheme, url.authority, f"/{path}" if url.scheme == "file" else path)


def _url(url: Url, parts: Sequence[str]) -> str:
    return str(_at(url, parts))


def _common_root(places: Iterable[_Place]) -> list[str]:
    paths = [_parts(place.url) for place in places]
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return list(takewhile(lambda part: "=" not in part, (parts[0] for parts in same)))


def _below(path: str, folders: Iterable[str]) -> str:
    """Cut off the folder that the user named, whose own parts may well be hidden."""
    for folder in sorted(folders, key=len, reverse=True):
        if path.startswith(folder + "/"):
            return path[len(folder) + 1 :]
    return path


def _is_hidden(path: str) -> bool:
    *folders, name = path.split("/")
    return name[0] in "._" or any(f[0] == "." or (f[0] == "_" and "=" not in f) for f in folders)


def _is_magic(part: str) -> bool:
    return any(character in part for character in "*?[")


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match a path or one of its folders: what matches a folder stands for all below it."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + (len(pattern) == 1)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _may_lead(folder: str, pattern: Sequence[str]) -> bool:
    """Tell whether files below a folder may match."""
    for part, wanted in zip(folder.split("/"), pattern, strict=False):
        if wanted == "**":
            return True
        if not fnmatchcase(part, wanted):
            return False
    return True


# --- what the store says ---------------------------------------------------------------------------------------------


def _kind(url: Url) -> str | None:
    """``"file"``, ``"folder"``, or None where there is nothing."""
    text = str(url)
    if url.scheme in ("file", "hdfs"):
        location = open_filesystem(text)
        with storage_errors(text, "read"):
            found = location.filesystem.get_file_info(location.path).type
        return {pafs.FileType.File: "file", pafs.FileType.Directory: "folder"}.get(found)
    *above, name = _parts(url) or [""]
    if name and open_store(_url(url, above)).head(name) is not None:
        return "file"
    return "folder" if next(open_store(text).list(limit=1), None) is not None else None


def _describe(folder: Url, name: str) -> ListedFile:
    url = _at(folder, [*_parts(folder), name])
    if folder.scheme == "file":
        with storage_errors(str(url), "read"):
            status = os.stat(str(url))
        return ListedFile(name, status.st_size, "", status.st_mtime_ns)
    if folder.scheme == "hdfs":
        location = open_filesystem(str(url))
        with storage_errors(str(url), "read"):
            info = location.filesystem.get_file_info(location.path)
        return ListedFile(name, info.size, "", info.mtime_ns or 0)
    found = open_store(str(folder)).head(name)
    if found is None:
        raise _missing(str(url), url)
    return ListedFile(name, found.size, found.etag, int(found.modified.timestamp() * 1e6) * 1000)


def _walk(place: _Place) -> Iterator[ListedFile]:
    """Yield all files below a place; folders that a pattern can't match are left out where that saves work."""
    if place.url.scheme == "file":
        yield from _walk_folder(str(place.url), "", lambda folder: _may_lead(folder, place.pattern), frozenset())
    elif place.url.scheme == "hdfs":
        yield from _walk_filesystem(str(place.url))
    else:
        for info in open_store(str(place.url)).list():
            if not info.key.endswith("/"):
                yield ListedFile(info.key, info.size, info.etag, int(info.modified.timestamp() * 1e6) * 1000)


def _walk_folder(
    root: str, folder: str, descend: Callable[[str], bool], above: frozenset[tuple[int, int]]
) -> Iterator[ListedFile]:
    path = os.path.join(root, folder) if folder else root
    with storage_errors(path, "list"):
        status = os.stat(path)
        entries = [] if (status.st_dev, status.st_ino) in above else list(os.scandir(path))
    above |= {(status.st_dev, status.st_ino)}
    for entry in entries:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            if descend(name):
                yield from _walk_folder(root, name, descend, above)
        elif entry.is_file() or entry.is_symlink():  # a broken link is an error, not nothing
            with storage_errors(entry.path, "read"):
                found = entry.stat()
            yield ListedFile(name, found.st_size, "", found.st_mtime_ns)


def _walk_filesystem(url: str) -> Iterator[ListedFile]:
    location = open_filesystem(url)
    with storage_errors(url, "list"):
        infos = location.filesystem.get_file_info(pafs.FileSelector(location.path, recursive=True))
    for info in infos:
        if info.type == pafs.FileType.File:
            path = info.path.removeprefix(location.path).lstrip("/")
            yield ListedFile(path, info.size, "", info.mtime_ns or 0)


def _missing(text: str, url: Url) -> NotFoundError:
    """Name the deepest folder that exists, and what there is in it."""
    parts = _parts(url)
    while parts:
        *above, name = parts
        folder = _at(url, above)
        if (not above and url.scheme != "file") or _kind(folder) == "folder":
            break
        parts = above
    else:
        return NotFoundError("there is nothing at this place", on=text)
    return NotFoundError.among("file or folder", name, _names(folder), on=text)


def _names(folder: Url) -> list[str]:
    if folder.scheme == "file":
        with storage_errors(str(folder), "list"):
            return os.listdir(str(folder))
    if folder.scheme == "hdfs":
        return sorted({each.path.partition("/")[0] for each in _walk_filesystem(str(folder))})
    store = open_store(str(folder))
    return [*store.folders(), *(info.key for info in store.list(limit=50) if "/" not in info.key)]
