"""Train, evaluate and publish four models on the flights of 2013, as a user would from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SPECS = ("flights_logistic", "flights_xgboost", "flights_linear", "flights_xgboost_delay")
NEXT = """
Next, in this folder (with .venv/bin on your PATH):
  mutirao run list
  mutirao plan data_samples/flights_logistic.yaml        # everything is cached now, and it says so
  mutirao data inspect data_samples/flights
  mutirao model show late-flights@champion
  mutirao model history late-flights champion
  mutirao predict late-flights@champion data_samples/flights predictions --key day --key carrier --key flight
"""


def main() -> int:
    """Run every sample spec; ends with the first exit code that is not 0."""
    started, rows = time.monotonic(), []
    for name in SPECS:
        spec = HERE / f"{name}.yaml"
        print(f"\n$ mutirao run data_samples/{name}.yaml", flush=True)
        done = subprocess.run([*mutirao(), "run", str(spec)], cwd=HERE.parent, check=False)
        if done.returncode:
            return done.returncode
        rows.append((name, newest_run()))
    print("\n$ mutirao model list", flush=True)
    subprocess.run([*mutirao(), "model", "list"], cwd=HERE.parent, check=True)
    print(f"\nOn held-out days (the test split), {len(rows)} models in {time.monotonic() - started:.0f} s:")
    for name, record in rows:
        metrics = ", ".join(f"{metric} {value:.4g}" for metric, value in record["metrics"]["test"].items())
        print(f"  {name:22} {record['version']:18} {metrics}")
    print(NEXT)
    return 0


def mutirao() -> list[str]:
    """The command of this environment."""
    return [str(Path(sys.executable).with_name("mutirao"))]


def newest_run() -> dict[str, dict[str, dict[str, float]]]:
    """The record of the run that has just ended."""
    listed = subprocess.run(
        [*mutirao(), "run", "list", "--limit", "1", "--json"],
        cwd=HERE.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    record: dict[str, dict[str, dict[str, float]]] = json.loads(listed.stdout)[0]
    return record


if __name__ == "__main__":
    sys.exit(main())
