"""What does the reproducible sum cost in a step of two ranks: against a plain sum, with 100,000 weights and with 1,000?

The plain side adds its lanes' vectors with NumPy and all-reduces the totals in float64: as fast as can be, with bits
that hang on the number of ranks.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

LANES = 16


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; nothing is kept in `workdir`."""
    from pipelines.training.gang import run_gang

    def measured(**case: int) -> dict[str, Any]:
        program = "tests.benchmarks.reducing:measure_step"
        found: dict[str, Any] = json.loads(run_gang(None, program, [case] * 2).results[0])
        return found

    steps = 3 if quick else 15
    large = measured(rows=20_000, features=1000, outputs=100, steps=steps)
    small = measured(rows=3200, features=999, outputs=1, steps=20 * steps)
    share = large["ours"] / large["plain"] - 1
    words = "32 lanes; a step's arithmetic {compute:.3g} ms, the plain sum {plain_sum:.3g} ms, ours {our_sum:.3g} ms"
    return [
        {
            "what": "one step, 100,100 weights, 20,000 rows a rank, ms: reproducible against plain sum",
            "ours": large["ours"], "peer": large["plain"], "ratio": share, "target": "≤ 0.15 more",
            "met": share <= 0.15, "runs": steps, "note": words.format(**large),
        },
        {
            "what": "one step, 1,000 weights: ms of the reproducible sum, payload included",
            "ours": small["our_sum"], "peer": small["plain_sum"], "ratio": small["our_sum"], "target": "≤ 1",
            "met": small["our_sum"] <= 1, "runs": 20 * steps, "note": words.format(**small),
        },
    ]  # fmt: skip


def measure_step(context: Any) -> bytes:
    """A rank's program: the same float32 pass with both sums, in turn, so that both see the same machine."""
    from pipelines.training.blocks import BlockStore
    from pipelines.training.objectives import Logistic, Multinomial
    from pipelines.training.passes import Passes
    from pipelines.training.reducers import ReproducibleSum
    from tests.benchmarks.linear import random_lanes

    rows, features, outputs, steps = (context.arguments[name] for name in ("rows", "features", "outputs", "steps"))
    collective, loss = context.collective, Logistic() if outputs == 1 else Multinomial(outputs)
    reducer = ReproducibleSum(collective)

    def plain(partials: np.ndarray) -> np.ndarray | None:
        total: np.ndarray = collective.allreduce(np.add.reduce(partials, axis=0))
        return total

    sums = {"ours": reducer.sum, "plain": plain}
    taken: dict[str, list[list[float]]] = {side: [] for side in sums}
    with BlockStore(context.scratch, None) as store:
        numbers = range(context.rank * LANES, (context.rank + 1) * LANES)
        lanes = random_lanes(store, numbers, rows, features)
        passes = Passes(lanes, features, loss)
        weights = np.zeros((outputs, features + 1))
        for step in range(steps + 1):
            for side, add in sums.items():
                collective.broadcast(weights.tobytes() if context.rank == 0 else None)
                began = time.perf_counter()
                partials = passes.gradient(weights, fine=False)
                collective.barrier()  # so that the sum's time is not the other rank's arithmetic
                middle = time.perf_counter()
                add(partials)
                if step:
                    taken[side].append([middle - began, time.perf_counter() - middle])
    compute = statistics.median(each[0] for side in taken.values() for each in side)
    adding = {side: statistics.median(each[1] for each in found) for side, found in taken.items()}
    found = {
        "ours": compute + adding["ours"],
        "plain": compute + adding["plain"],
        "compute": compute,
        "our_sum": adding["ours"],
        "plain_sum": adding["plain"],
    }
    return json.dumps({name: 1e3 * value for name, value in found.items()}).encode()
