"""Where runs and models live: spec > environment variable > ./mutirao.toml > ~/.mutirao."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import SpecError
from pipelines.spec import find_places


def test_the_nearest_word_wins(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    assert find_places(environment=home, folder=tmp_path).runs == str(tmp_path / "home/.mutirao/runs")
    (tmp_path / "mutirao.toml").write_text('runs = "s3://bucket/file"\n')
    assert find_places(environment=home, folder=tmp_path).runs == "s3://bucket/file"
    variable = home | {"MUTIRAO_RUNS": "s3://bucket/variable"}
    assert find_places(environment=variable, folder=tmp_path).runs == "s3://bucket/variable"
    assert find_places("s3://bucket/spec", environment=variable, folder=tmp_path).runs == "s3://bucket/spec"
    assert find_places(environment=variable, folder=tmp_path).registry == str(tmp_path / "home/.mutirao/registry")


def test_a_wrong_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mutirao.toml").write_text("runz = 1\nregistry = 2\n")
    with pytest.raises(SpecError) as caught:
        find_places(folder=tmp_path)
    assert {fault.path for fault in caught.value.faults} == {"runz", "registry"}
    (tmp_path / "mutirao.toml").write_text("runs = ")
    with pytest.raises(SpecError, match="not TOML"):
        find_places(folder=tmp_path)
