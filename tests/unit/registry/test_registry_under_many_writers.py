"""Several processes publish and promote at once, on local disk and on a real S3 server; one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.registry import Registry

pytestmark = pytest.mark.slow

WRITER = """
import json, sys
from pipelines.registry import Registry
registry, who, count = Registry.open(sys.argv[1]), sys.argv[2], int(sys.argv[3])
first = registry.get("flights/1")
made = dict(golden=registry.golden(first), lineage=registry.lineage(first), evaluation=registry.evaluation(first))
model = registry.load(first)
print("ready", flush=True)
sys.stdin.readline()
published = []
for _ in range(count):
    version = registry.publish("flights", model, who=who, **made)
    published.append(version.version)
    print(version.version, flush=True)
    registry.promote("flights", version.version, who=who)
print(json.dumps(published))
"""


@pytest.fixture(params=["local", "seaweedfs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "registry") if request.param == "local" else request.getfixturevalue("s3_url")


def start(url: str, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, who, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(writers: list[subprocess.Popen[str]]) -> None:
    """Let all begin as soon as the last is ready."""
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()


def test_numbers_have_no_gaps_and_every_writer_gets_its_own(url: str, trained: Any) -> None:
    registry, made = Registry.open(url), trained()
    registry.publish("flights", made.model, **made.arguments())
    writers = [start(url, f"writer-{n}", 5) for n in range(3)]
    go(writers)
    published = [json.loads(writer.communicate(timeout=240)[0].splitlines()[-1]) for writer in writers]

    assert sorted(number for each in published for number in each) == list(range(2, 17))
    versions = {version.version: version for version in registry.versions("flights")}
    assert sorted(versions) == list(range(1, 17))
    for n, numbers in enumerate(published):
        assert {versions[number].created_by for number in numbers} == {f"writer-{n}"}
    log = registry.history("flights")
    assert [entry.number for entry in log] == list(range(len(log), 0, -1))
    assert [entry.previous for entry in log[:-1]] == [entry.version for entry in log[1:]], "each knows what it replaced"
    assert {entry.version for entry in log} == set(range(2, 17))


def test_a_writer_that_is_killed_leaves_complete_versions_only(url: str, trained: Any) -> None:
    registry, made = Registry.open(url), trained()
    registry.publish("flights", made.model, **made.arguments())
    victim, survivor = start(url, "victim", 1000), start(url, "survivor", 3)
    go([victim, survivor])
    assert victim.stdout is not None
    seen = [int(victim.stdout.readline()) for _ in range(4)]
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    published = json.loads(survivor.communicate(timeout=240)[0].splitlines()[-1])

    versions = registry.versions("flights")
    numbers = [version.version for version in versions]
    assert numbers == list(range(len(numbers), 0, -1))
    assert {*seen, *published} <= set(numbers)
    assert all(registry.verify(version).ok for version in versions)
    assert registry.verify(versions[0], deep=True).ok
    again = registry.publish("flights", made.model, **made.arguments())
    assert again.version == len(numbers) + 1
