"""A cluster spec is checked whole: every fault with its path, and units understood."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cluster import ClusterSpec, ClusterSpecError, ClusterUsageError, load_cluster_spec, parse_cluster_spec


def test_units_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("workers: 3\nworker: {memory: 1.5 GiB, threads: 2}\nstart_timeout: 5 min\nidle_timeout: 1 hour\n")
    spec = load_cluster_spec(path)
    assert spec.worker.memory == 3 * 2**29
    assert (spec.start_timeout, spec.idle_timeout) == (300.0, 3600.0)
    assert (spec.workers, spec.lowest, spec.highest) == (3, 3, 3)


def test_idle_clusters_stop_after_twenty_minutes_by_default() -> None:
    assert ClusterSpec().idle_timeout == 1200.0


def test_all_faults_come_at_once_each_with_its_path() -> None:
    plain = {
        "backend": "yarn",
        "workers": 4,
        "max_workers": 2,
        "min_workers": 5,
        "wrokers": 1,
        "worker": {"memory": "two", "threads": 0, "gpu": 1},
        "start_timeout": "soon",
    }
    with pytest.raises(ClusterSpecError) as raised:
        parse_cluster_spec(plain, on="cluster.yaml")
    faults = {fault.path: str(fault) for fault in raised.value.faults}
    assert set(faults) == {
        "backend", "max_workers", "min_workers", "wrokers",
        "worker.memory", "worker.threads", "worker.gpu", "start_timeout",
    }  # fmt: skip
    assert "there are: local" in faults["backend"]
    assert "Did you mean 'workers'" in faults["wrokers"]
    assert "Did you mean 'gpus'" in faults["worker.gpu"]
    assert "2 GiB" in faults["worker.memory"]
    assert raised.value.exit_code == 2
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)
    assert again.faults == raised.value.faults


def test_local_workers_have_no_gpus() -> None:
    with pytest.raises(ClusterSpecError, match=r"worker: workers of the backend 'local' have no GPUs"):
        parse_cluster_spec({"worker": {"gpus": 1}})


@pytest.mark.parametrize("text", ["- 1\n", "", "3"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ClusterSpecError, match="a mapping is wanted"):
        load_cluster_spec(path)


@pytest.mark.parametrize(("content", "message"), [(b"a: [", "not a YAML file"), (b"\xff\xfe\x00", "not a YAML file")])
def test_what_is_no_yaml_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    with pytest.raises(ClusterUsageError, match=message) as raised:
        load_cluster_spec(path)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterUsageError, match=r"nope\.yaml"):
        load_cluster_spec(tmp_path / "nope.yaml")


@pytest.mark.parametrize("text", ["", " ", "min", "-5 s", "nan", "2 parsecs"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ClusterSpecError, match="start_timeout"):
        parse_cluster_spec({"start_timeout": text})


@pytest.mark.parametrize("text", ["", "GiB", "-2 GiB", "1 KiB", "lots", "nan"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ClusterSpecError, match=r"worker\.memory"):
        parse_cluster_spec({"worker": {"memory": text}})
