"""The running environment as one value: versions, the whole lock and a digest; and what importing the package costs."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from dataclasses import asdict

import cluster
from cluster import describe_environment


def test_versions_and_digest_are_those_of_this_interpreter() -> None:
    found = describe_environment()
    assert found.python == platform.python_version()
    assert found.version("dask") == importlib.metadata.version("dask")
    assert found.version("Scikit_Learn") == importlib.metadata.version("scikit-learn")
    assert found.version("no-such-package") is None
    assert list(found.packages) == sorted(set(found.packages))
    assert len(found.digest) == 64
    json.dumps(asdict(found))


def test_another_process_describes_it_the_same() -> None:
    code = "from cluster import describe_environment; print(describe_environment().digest)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == describe_environment().digest


def test_importing_the_package_brings_nothing_heavy() -> None:
    heavy = "{'dask', 'distributed', 'pydantic', 'yaml', 'click', 'psutil'}"
    code = f"import sys, cluster; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert [name for name in cluster.__all__ if getattr(cluster, name, None) is None] == []
    assert dir(cluster) == sorted(cluster.__all__)
