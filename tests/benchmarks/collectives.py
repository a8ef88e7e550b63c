"""How long does an all-reduce of two ranks take: ours, XGBoost's, and two bare sockets with an addition?"""

from __future__ import annotations

import json
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; nothing is kept in `workdir`."""
    from pipelines.training.gang import run_gang

    arguments = [{"quick": quick}] * 2
    found = json.loads(run_gang(None, "tests.benchmarks.collectives:measure_collectives", arguments).results[0])
    return [
        {
            "what": f"all-reduce of {int(size):,} float32, two ranks, ms: against xgboost.collective", "ours": ours,
            "peer": theirs, "ratio": theirs / ours, "target": "", "met": None, "runs": runs,
            "note": f"bare sockets and an addition {bare:.3f} ms",
        }
        for size, (ours, theirs, bare, runs) in found.items()
    ]  # fmt: skip


def measure_collectives(context: Any) -> bytes:
    """A rank's program: the same all-reduce three ways, each the median of many calls."""
    from xgboost import collective as theirs
    from xgboost.tracker import RabitTracker

    ours, found = context.collective, {}
    tracker = RabitTracker(n_workers=2, host_ip=context.host, sortby="task", timeout=60) if context.rank == 0 else None
    if tracker is not None:
        tracker.start()
    settings = json.loads(ours.broadcast(json.dumps(tracker.worker_args()).encode() if tracker is not None else None))
    with theirs.CommunicatorContext(**settings, dmlc_task_id=str(context.rank)), _bare_socket(context) as sock:
        for size in (30, 1000, 10_000, 250_000, 1_000_000, 16_000_000):
            runs = max(3, min(2000, 20_000_000 // size) // (10 if context.arguments["quick"] else 1))
            array, space = np.ones(size, np.float32), np.empty(size, np.float32)

            def bare(array: np.ndarray = array, space: np.ndarray = space) -> np.ndarray:
                return _bare_exchange(sock, array, space)

            def xgboost(array: np.ndarray = array) -> Any:
                return theirs.allreduce(array, theirs.Op.SUM)

            def mine(array: np.ndarray = array) -> Any:
                return ours.allreduce(array)

            found[size] = [*(1e3 * _median_of(each, runs, ours) for each in (mine, xgboost, bare)), runs]
    ours.barrier()  # the tracker ends with rank 0, and the other rank takes its leave from it
    return json.dumps(found).encode()


def _median_of(work: Any, runs: int, collective: Any) -> float:
    taken = []
    for _ in range(3 + runs):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    collective.barrier()
    return statistics.median(taken[3:])


def _bare_socket(context: Any) -> socket.socket:
    if context.rank == 0:
        with socket.create_server((context.host, 0)) as listener:
            context.collective.broadcast(json.dumps(listener.getsockname()[1]).encode())
            sock, _ = listener.accept()
    else:
        sock = socket.create_connection((context.host, json.loads(context.collective.broadcast(None))))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _bare_exchange(sock: socket.socket, array: np.ndarray, space: np.ndarray) -> np.ndarray:
    """Swap and add, one direction after the other where both together would fill the buffers."""
    small, view, got = array.nbytes <= 1 << 17, memoryview(space).cast("B"), 0
    first = small or sock.getsockname()[1] < sock.getpeername()[1]
    if first:
        sock.sendall(array)
    while got < len(view):
        got += sock.recv_into(view[got:])
    if not first:
        sock.sendall(array)
    total: np.ndarray = array + space
    return total
