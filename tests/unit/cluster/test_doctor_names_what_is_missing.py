"""The checks before a start: each says what it saw and what to do, and the command ends with exit code 3."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster import ClusterSpec, PreflightError, connect, require, run_checks
from cluster.cli import doctor
from cluster.doctor import (
    Finding,
    check_clock,
    check_cpu,
    check_loopback,
    check_memory,
    check_memory_free,
    check_python,
    check_scratch,
    check_store,
    check_version,
    store_address,
)
from cluster.resources import Machine

GIB = 2**30
SMALL = Machine("laptop", "Linux x86_64", cpus=2.0, memory_bytes=8 * GIB, memory_free_bytes=3 * GIB)


def test_this_machine_passes() -> None:
    findings = run_checks()
    assert {finding.name for finding in findings} >= {"python", "dask", "memory", "processors", "scratch", "clock"}
    require(findings)


def test_too_small_a_machine_is_told_in_numbers() -> None:
    finding = check_memory(5, 2 * GIB, SMALL)
    assert not finding.ok
    assert "5 × 2.0 GiB = 10.0 GiB needed, laptop has 8.0 GiB" in finding.evidence
    assert "At most 4 workers" in finding.remedy
    assert check_memory(4, 2 * GIB, SMALL).ok
    assert "Lower worker.memory to at most 8.0 GiB" in check_memory(1, 16 * GIB, SMALL).remedy


def test_a_cluster_too_large_for_this_machine_is_refused_before_anything_starts(tmp_path: Path) -> None:
    spec = ClusterSpec(workers=1000, worker={"memory": "64 GiB"}, scratch=str(tmp_path / "scratch"))  # type: ignore[arg-type]  # pydantic reads the mapping
    with pytest.raises(PreflightError, match=r"memory: 1000 × 64\.0 GiB = 64000\.0 GiB needed") as raised:
        connect(spec)
    assert raised.value.exit_code == 3
    assert not list((tmp_path / "scratch").iterdir())


def test_what_only_makes_it_slow_is_advice() -> None:
    for finding in (check_memory_free(2, 2 * GIB, SMALL), check_cpu(2, 4, SMALL)):
        assert not finding.ok
        require([finding])


def test_all_that_failed_is_said_the_first_one_first() -> None:
    findings = [
        Finding("a", True, "fine"),
        Finding("b", False, "broken", "Mend b."),
        Finding("c", False, "also broken"),
    ]
    with pytest.raises(PreflightError, match=r"(?s)^b: broken\. Mend b\..*also c: also broken"):
        require(findings)


def test_scratch_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = check_scratch(tmp_path / "file" / "below")
    assert not finding.ok
    assert str(tmp_path) in finding.evidence
    assert check_scratch(tmp_path / "new").ok
    assert not check_scratch(tmp_path, least_bytes=2**62).ok


def test_versions_and_clock() -> None:
    assert check_version("dask", "2026.7.1", "2026.7.1").ok
    assert check_version("dask", "2026.10.0rc1", "2026.7.1").ok
    assert not check_version("dask", "2025.12.0", "2026.7.1").ok
    assert "pip install 'dask>=2026.7.1'" in check_version("dask", None, "2026.7.1").remedy
    assert not check_python((3, 10)).ok
    assert not check_clock(now=0.0).ok
    assert check_clock().ok
    assert check_loopback().ok


def test_a_folder_as_store_is_written_and_left_clean(tmp_path: Path) -> None:
    assert check_store(str(tmp_path / "not" / "yet")).ok
    assert check_store((tmp_path / "x").as_uri()).ok
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    assert not check_store(str(tmp_path / "file")).ok
    assert check_store("memory://x").ok


def test_a_remote_store_is_asked_where_it_lives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert check_store("s3://bucket/models", f"http://127.0.0.1:{port}").ok
    refused = check_store("s3://key:secret@bucket/models", f"http://127.0.0.1:{port}")
    assert not refused.ok
    assert f"127.0.0.1:{port}" in refused.evidence
    assert "secret" not in str(refused)


@pytest.mark.parametrize(
    ("url", "endpoint", "address"),
    [
        ("s3://b/p", "http://localhost:9000", ("localhost", 9000)),
        ("s3://b/p", "https://minio", ("minio", 443)),
        ("s3://b/p", None, ("s3.amazonaws.com", 443)),
        ("gs://b/p", "http://localhost:9000", ("storage.googleapis.com", 443)),
        ("hdfs://name/p", None, ("name", 8020)),
        ("hdfs://name:9000/p", None, ("name", 9000)),
        ("hdfs://name:port/p", None, ("", 0)),
        ("hdfs:///p", None, ("", 8020)),
    ],
)
def test_addresses_of_stores(url: str, endpoint: str | None, address: tuple[str, int]) -> None:
    assert store_address(url, endpoint) == address


def test_the_command_prints_a_table_or_json_and_ends_with_0_or_3(tmp_path: Path) -> None:
    run = CliRunner().invoke(doctor, ["--store", str(tmp_path)])
    assert run.exit_code == 0
    assert "ok    memory" in run.output
    spec = tmp_path / "cluster.yaml"
    spec.write_text("workers: 1000\nworker: {memory: 64 GiB}\n")
    run = CliRunner().invoke(doctor, ["--cluster", str(spec)])
    assert run.exit_code == 3
    assert "FAIL  memory" in run.output
    run = CliRunner().invoke(doctor, ["--cluster", str(spec), "--json"])
    assert run.exit_code == 3
    report = json.loads(run.output)
    assert report["ok"] is False
    assert [each["name"] for each in report["findings"] if not each["ok"] and each["blocking"]] == ["memory"]


def test_the_command_tells_a_bad_spec_with_exit_code_2(tmp_path: Path) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text("workers: none\nbackend: slurm\n")
    run = CliRunner().invoke(doctor, ["--cluster", str(spec)])
    assert run.exit_code == 2
    assert "2 faults" in run.output
    assert "workers" in run.output
