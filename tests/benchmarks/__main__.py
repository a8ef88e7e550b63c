"""Measure against named peers and write the table: ``python -m tests.benchmarks [--quick] [NAME…]``.

Every row is a ratio of two things measured in the same run on the same machine, medians of several runs. A target that
is not met is reported as not met. Results go to ``tests/benchmarks/results/`` as JSON for machines and a table for
people, with date, commit and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAMES = (
    "planning", "reading", "features", "linear", "collectives", "reducing", "strategies", "boosting", "metrics",
    "parameter_server", "model_parallel", "sparse", "scaling",
)  # fmt: skip
RESULTS = Path(__file__).parent / "results"
COLUMNS = ("what", "ours", "peer", "ratio", "target", "met", "runs", "note")
PEERS = ("dask", "dask-ml", "numpy", "pyarrow", "scikit-learn", "xgboost")


def main() -> int:
    """Run the named benchmarks, each in a process of its own, so that none inherits another's memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small data: does it run, not how fast")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--workdir", default=str(Path(tempfile.gettempdir()) / "mutirao-bench"))
    options = parser.parse_args()
    if options.one:
        rows = import_module(f"tests.benchmarks.{options.one}").run(Path(options.workdir), options.quick)
        Path(options.workdir, f"{options.one}.json").write_text(json.dumps(rows, default=float))
        return 0
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    Path(options.workdir).mkdir(parents=True, exist_ok=True)
    rows, failed = [], []
    for name in options.names or NAMES:
        print(f"== {name}", file=sys.stderr, flush=True)
        measured = measure(name, options.workdir, options.quick)
        failed += [name] if measured is None else []
        rows += measured or []
    report(rows, quick=options.quick, whole=not options.names)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure(name: str, workdir: str, quick: bool) -> list[dict[str, Any]] | None:
    """Run one benchmark; None when it failed."""
    command = [sys.executable, "-m", "tests.benchmarks", "--one", name, "--workdir", workdir]
    if subprocess.run(command + ["--quick"] * quick, check=False).returncode:
        return None
    rows: list[dict[str, Any]] = json.loads(Path(workdir, f"{name}.json").read_text())
    return [{"benchmark": name, **row} for row in rows]


def report(rows: list[dict[str, Any]], *, quick: bool, whole: bool) -> None:
    """Print the table, and keep it when it is a whole one of full size."""
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in PEERS},
    }
    table = _table(rows)
    head = f"Measured {facts['date']} at commit {facts['commit']} on {facts['machine']}; medians."
    print(f"\n{head}\n\n{table}")
    if whole and not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "latest.json").write_text(json.dumps(facts | {"rows": rows}, indent=1, default=float) + "\n")
        (RESULTS / "latest.md").write_text(f"{head}\n\n{table}\n")


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in COLUMNS) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
