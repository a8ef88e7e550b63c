"""Packing the user's code: what comes along, under which name, and a digest of names and bytes only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import CODE_PATH, CodeArchive, CodeError, activate_code, pack_code


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "flat.py": "VALUE = 1\n",
        "pack/__init__.py": "",
        "pack/inner.py": "from pack.sub.deep import DEEP\n",
        "pack/sub/__init__.py": "",
        "pack/sub/deep.py": "DEEP = 'deep'\n",
        "pack/table.csv": "a,b\n",
        "pack/.secret": "no",
        "pack/__pycache__/inner.cpython-311.pyc": "no",
        "src/lib/__init__.py": "",
        "src/lib/core.py": "x = 2\n",
        "data/lookup.csv": "k,v\n",
        "stages/one.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def names(archive: CodeArchive) -> list[str]:
    return [file.path for file in archive.files]


def test_code_keeps_the_name_it_is_imported_by(project: Path) -> None:
    assert names(pack_code(["flat.py"], project)) == ["flat.py"]
    assert names(pack_code(["flat"], project)) == ["flat.py"]
    whole = ["pack/__init__.py", "pack/inner.py", "pack/sub/__init__.py", "pack/sub/deep.py", "pack/table.csv"]
    assert names(pack_code(["pack/"], project)) == whole
    assert names(pack_code(["pack"], project)) == whole
    assert names(pack_code(["src/lib"], project)) == ["lib/__init__.py", "lib/core.py"]
    assert names(pack_code(["stages"], project)) == ["stages/one.py"]
    deep = ["pack/__init__.py", "pack/sub/__init__.py", "pack/sub/deep.py"]
    assert names(pack_code(["pack.sub.deep"], project)) == deep
    assert names(pack_code(["pack/sub/deep.py"], project)) == deep
    assert names(pack_code(["data/lookup.csv"], project)) == ["data/lookup.csv"]
    assert pack_code(["flat", "pack", "data/lookup.csv"], project).modules == ("flat", "pack")


def test_code_may_lie_beside_the_base_folder(project: Path) -> None:
    assert names(pack_code(["../src/lib"], project / "data")) == ["lib/__init__.py", "lib/core.py"]


def test_the_digest_is_the_same_anywhere_at_any_time(project: Path, tmp_path: Path) -> None:
    entries = ["pack", "flat"]
    here = pack_code(entries, project)
    copy = tmp_path / "elsewhere"
    shutil.copytree(project, copy)
    for path in copy.rglob("*"):
        os.utime(path, (0, 1_000_000_000))
    there = pack_code(list(reversed(entries)), copy)
    assert there.digest == here.digest
    assert there.data == here.data
    (copy / "flat.py").write_text("VALUE = 2\n")
    assert pack_code(entries, copy).digest != here.digest


def test_a_renamed_file_changes_the_digest(project: Path) -> None:
    before = pack_code(["pack"], project).digest
    (project / "pack" / "table.csv").rename(project / "pack" / "tables.csv")
    assert pack_code(["pack"], project).digest != before


@given(st.dictionaries(st.text("abcxyz_", min_size=1, max_size=8), st.binary(max_size=200), min_size=1, max_size=5))
def test_bytes_survive_and_so_does_the_digest(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    base = tmp_path_factory.mktemp("code")
    for name, data in files.items():
        (base / f"{name}.dat").write_bytes(data)
    archive = pack_code([f"{name}.dat" for name in files], base)
    again = CodeArchive.from_bytes(archive.data)
    assert again == archive
    again.unpack(base / "out")
    assert {path.stem: path.read_bytes() for path in (base / "out").iterdir()} == files


def test_an_entry_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(CodeError, match="my_code: there is no such module") as raised:
        pack_code(["my_code"], project)
    assert str(project) in str(raised.value)
    assert raised.value.exit_code == 2


def test_two_files_of_one_name_are_refused(project: Path) -> None:
    (project / "src" / "flat.py").write_text("other")
    with pytest.raises(CodeError, match=r"two files would be packed as 'flat\.py'"):
        pack_code(["flat.py", "src/flat.py"], project)


def test_too_much_is_refused_naming_the_largest(project: Path) -> None:
    (project / "pack" / "model.bin").write_bytes(b"\0" * 3_000_000)
    with pytest.raises(CodeError, match=r"at most 2 MiB.*2\.9 MiB.*pack/model\.bin"):
        pack_code(["pack"], project, limit_bytes=2 * 2**20)


def test_data_outside_of_the_base_folder_is_refused(project: Path) -> None:
    with pytest.raises(CodeError, match="must lie below the base folder"):
        pack_code(["../data/lookup.csv"], project / "src")


def test_an_empty_folder_is_refused(project: Path) -> None:
    (project / "empty").mkdir()
    with pytest.raises(CodeError, match="nothing to pack"):
        pack_code(["empty"], project)


def test_a_dangling_link_is_named(project: Path) -> None:
    (project / "pack" / "link.py").symlink_to(project / "nowhere.py")
    with pytest.raises(CodeError, match=r"link\.py"):
        pack_code(["pack"], project)


def test_damaged_archives_are_refused() -> None:
    with pytest.raises(CodeError, match="not a code archive"):
        CodeArchive.from_bytes(b"PK\x03\x04 broken")


def test_nothing_packs_to_nothing(tmp_path: Path) -> None:
    assert pack_code([], tmp_path).files == ()


def test_active_code_is_imported_here_and_in_children_until_closed(project: Path, tmp_path: Path) -> None:
    archive = pack_code(["pack"], project)
    before = dict(os.environ), list(sys.path)
    with activate_code(archive, tmp_path / "active") as active:
        import pack.inner  # type: ignore[import-not-found]  # exists only while the archive is active

        assert pack.inner.DEEP == "deep"
        assert Path(pack.inner.__file__).is_relative_to(active.folder)
        assert os.environ[CODE_PATH] == str(active.folder)
        child = [sys.executable, "-c", "import pack.inner; print(pack.inner.DEEP)"]
        assert subprocess.run(child, capture_output=True, text=True, check=True, cwd="/").stdout == "deep\n"
    assert (dict(os.environ), list(sys.path)) == before
    assert not [name for name in sys.modules if name.partition(".")[0] == "pack"]


def test_without_a_folder_nothing_is_left_on_disk(project: Path) -> None:
    with activate_code(pack_code(["flat"], project)) as active:
        assert (active.folder / "flat.py").exists()
    assert not active.folder.parent.exists()


def test_a_changed_archive_is_imported_anew(project: Path, tmp_path: Path) -> None:
    found = []
    for value in (1, 2):
        (project / "flat.py").write_text(f"VALUE = {value}\n")
        with activate_code(pack_code(["flat"], project), tmp_path / "active"):
            import flat  # type: ignore[import-not-found]  # exists only while the archive is active

            found.append(flat.VALUE)
    assert found == [1, 2]
