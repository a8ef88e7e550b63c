"""What ranks run in tests: imported by them from the code path, as a user's own modules are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from pipelines.errors import DataError
from pipelines.training.gang import RankContext, Regroup, StopRequested


def describe(context: RankContext) -> bytes:
    """Meet the others, and say what there is."""
    total = context.collective.allreduce(np.full(3, context.rank + 1.0))
    names = context.collective.allgather(f"rank {context.rank}".encode())
    context.report({"from": context.rank})
    (context.scratch / "file").write_text("x")
    found = {
        "rank": context.rank,
        "size": context.size,
        "sum": total.tolist(),
        "names": [name.decode() for name in names],
        "arguments": context.arguments,
        "threads": context.threads,
        "memory_bytes": context.memory_bytes,
        "scratch": str(context.scratch),
        "blas": os.environ["OMP_NUM_THREADS"],
        "pid": os.getpid(),
    }
    return json.dumps(found).encode()


def misbehave(context: RankContext) -> bytes:
    """Do what ``arguments["do"]`` says, once all are in the collective."""
    for _ in range(5):
        context.collective.barrier()
    context.report({"pid": os.getpid()})
    what = context.arguments.get("do")
    if what == "raise":
        print("something on the way", flush=True)
        raise ZeroDivisionError("a mistake in the user's code")
    if what == "data error":
        raise DataError("a label can't be read", on="column late", expected="numbers", found="words", remedy="Mend it")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "exit":
        sys.exit(3)
    if what == "vanish":
        os._exit(0)
    if what == "memory":
        hoard = [np.ones(4 << 20) for _ in range(400)]
        time.sleep(60)
        return bytes(len(hoard))
    if what == "kill worker":
        os.kill(os.getppid(), signal.SIGKILL)
    if what == "stop worker":
        os.kill(os.getppid(), signal.SIGSTOP)
    if what == "no bytes":
        return "text"  # type: ignore[return-value]
    if what == "deaf":
        time.sleep(60)
    return _wait(context)


def _wait(context: RankContext) -> bytes:
    """Stay in the collective, as a rank in the middle of training does."""
    while True:
        context.collective.barrier()
        time.sleep(0.01)


def stubborn(context: RankContext) -> bytes:
    """Compute, deaf to every word, with processes of its own."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
    context.report({"pids": [os.getpid(), *(child.pid for child in children)]})
    if context.arguments.get("do") == "raise":
        time.sleep(0.5)
        raise ValueError("enough")
    while True:
        sum(range(100_000))


def polite(context: RankContext) -> bytes:
    """Step until asked to stop; rank 0 decides for all, and saves first."""
    context.report({"pid": os.getpid()})
    while True:
        word = b"stop" if context.rank == 0 and context.stop_requested() else b"go"
        if context.collective.broadcast(word) == b"stop":
            context.report({"saved": context.rank})
            raise StopRequested
        time.sleep(0.01)


def quick(context: RankContext) -> bytes:
    """Come, meet, work a little, go."""
    for _ in range(int(context.arguments.get("turns", 20))):
        context.collective.barrier()
        time.sleep(0.005)
    return b"done"


def nap(context: RankContext) -> bytes:
    """Take as long as told."""
    context.report({"pid": os.getpid()})
    time.sleep(float(context.arguments["seconds"]))
    return b"rested"


def count(context: RankContext) -> bytes:
    """Add up the numbers of all lanes step by step; survives losses and growth, for what is committed is kept.

    ``arguments``: own ``lanes``, the ``steps`` to go, ``pause_s`` of a step, and what rank r does at step s: ``do``.
    """
    arguments, kept = context.arguments, context.kept.values
    kept.setdefault("state", [0, 0])
    newest = max(context.collective.allgather(json.dumps(kept["state"]).encode()), key=lambda each: json.loads(each))
    step, total = json.loads(newest)
    context.kept.holds = tuple(arguments["lanes"])
    context.report({"formation": context.formation, "rank": context.rank, "size": context.size, "pid": os.getpid()})
    while step < arguments["steps"]:
        word = b"go"
        if context.rank == 0 and context.stop_requested():
            word = b"stop"
        elif context.rank == 0 and context.regroup_requested():
            word = b"regroup"
        word = context.collective.broadcast(word)
        if word == b"stop":
            raise StopRequested
        if word == b"regroup":
            raise Regroup
        context.report({"step": step, "rank": context.rank, "pid": os.getpid(), "formation": context.formation})
        time.sleep(arguments.get("pause_s", 0.0))
        own = float(sum(lane * (step + 1) for lane in arguments["lanes"]))
        total += int(context.collective.allreduce(np.array([own]))[0])
        step += 1
        kept["state"] = [step, total]
        if context.rank == 0:
            context.committed(step)
    return json.dumps([step, total, context.size, context.formation]).encode()


def linger(context: RankContext) -> bytes:
    """Say on which worker it runs, leave a sign, and stay until all files of ``arguments["until"]`` are there."""
    context.report({"on": os.getppid()})
    Path(context.arguments["sign"]).touch()
    end = time.monotonic() + 60
    while not all(Path(path).exists() for path in context.arguments["until"]):
        if time.monotonic() > end:
            raise TimeoutError("the others do not come")
        time.sleep(0.02)
    context.report({"off": os.getppid()})
    return b"done"


def converse(context: RankContext) -> bytes:
    """Ask on rank 0 until there is nothing more to do, and tell the others; die once, where the arguments say so."""
    heard: list[int] = context.kept.values.setdefault("heard", [])
    count = 0
    while True:
        ticket, word = f"{context.formation}.{count}", None
        if context.rank == 0:
            context.report({"ready": ticket})
            while word is None or word.get("ticket") != ticket:
                word = context.hear(5.0)
                if context.leaving():
                    raise Regroup
                if context.stop_requested():
                    word = {"ticket": ticket, "stop": True}
        said = json.loads(context.collective.broadcast(None if context.rank else json.dumps(word).encode()))
        if said.get("stop"):
            raise StopRequested
        if said.get("end"):
            return json.dumps(heard).encode()
        if said["die"] and context.rank == said["die"] - 1 and context.formation == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        context.collective.barrier()
        heard.append(said["work"])
        count += 1
        if context.rank == 0:
            context.report({"done": said["work"]})
