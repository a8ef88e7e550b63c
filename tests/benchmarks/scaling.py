"""How many steps a second would 2 to 64 ranks take? A model of measured costs, held against real runs of 2 and 4.

A step of synchronous descent on mini-batches has three phases, one after the other: rank 0 broadcasts the weights, all
ranks compute gradients on their lanes, and the reproducible sum brings the total to rank 0. What each costs is measured
by two ranks at once, with the real pass, the real sum's arithmetic and the real collective between processes; the model
puts the costs together as the code does for n ranks. Real trainings, a `Team` on the same rows, share this machine's
cores; what its scheduler loses where ranks outnumber cores is not modelled.

The simulated cluster has a core for every rank, as fast as one of this machine's with two busy, and a network like its
loopback: real ones are slower. All ranks are taken to be as even as two are here, while a step waits for the slowest.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.blocks import BlockStore, Stored
from pipelines.training.gang import run_gang
from pipelines.training.gang.collective import TcpCollective, listen
from pipelines.training.gang.context import Array, Collective, RankContext
from pipelines.training.holding import Holding
from pipelines.training.lanes import default_lanes
from pipelines.training.objectives import Logistic, Loss, Multinomial
from pipelines.training.passes import HEAD, Passes
from pipelines.training.reducers import GATHER_VALUES, PIECE_VALUES
from pipelines.training.reproducible import FOLDS, Binned, deposit, finish, merge
from pipelines.training.strategies.penalty import Penalty
from pipelines.training.strategies.synchronous import Team
from tests.benchmarks.linear import random_lanes

FEATURES = 999
OUTPUTS = (1, 100)
"""The cases: logistic regression of 1,000 weights, and one of 100 classes of 100,000."""
RANKS = (2, 4, 8, 16, 32, 64)
REAL = (1, 2, 4)
STEPS = 4
"""Of an epoch. A step's time is an epoch's over its steps, since blocks of rows are shuffled in some of them only."""
WITHIN = 0.8, 1.25
MESSAGE_BYTES = (16, 1 << 10, 1 << 13, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 960 << 10)
"""Up to pieces of the reproducible sum. Beyond 1 MiB ranks get their memory anew from the kernel for every message."""
VECTOR_SIZES = (256, 1 << 10, 1 << 12, 1 << 14, PIECE_VALUES)
ADDENDS = (1, 2, 4, 8, 16, 32, 64)
_MOST = 1 << 18
"""Elements of all sums that are added at once: at most half as many are in a step of these cases."""
LANES = default_lanes(1)
"""The default of few ranks."""
L2, RATE = 1e-4, 0.1
_LATE_S = 2e-4
"""What a message is given to arrive, beyond twice the time that it takes."""

Lanes: TypeAlias = dict[int, list[Stored]]
Measured: TypeAlias = tuple[int, tuple[list[int], list[float]]]
"""Elements of a vector; for some numbers of addends, the seconds."""


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; nothing is kept in `workdir`."""
    case = {"rows": 2048, "epochs": 1, "turns": 1} if quick else {"rows": 8192, "epochs": 2, "turns": 7}
    found = json.loads(run_gang(None, "tests.benchmarks.scaling:measure", [case] * max(REAL)).results[0])
    table = []
    for outputs in OUTPUTS:
        turns = found[str(outputs)]
        models = [StepModel.of(turn["costs"]) for turn in turns]
        real = {ranks: [turn["steps_s"][str(ranks)] for turn in turns] for ranks in REAL}
        table += [_checked(models, ranks, real[ranks], case["rows"]) for ranks in REAL if ranks > 1]
        table += [_simulated(models, ranks, real[1], case["rows"]) for ranks in RANKS]
    return table


def _checked(models: Sequence[StepModel], ranks: int, real: Sequence[float], rows: int) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    parts = _median_parts(models, ranks, cores)
    predicted, measured = 1 / sum(parts.values()), 1 / statistics.median(real)
    ratio = predicted / measured
    return {
        "what": f"scaling model against real, {ranks} ranks, {models[0].weights:,} weights: steps/s", "ours": predicted,
        "peer": measured, "ratio": ratio, "target": "{:g}–{:g}".format(*WITHIN),
        "met": WITHIN[0] <= ratio <= WITHIN[1], "runs": len(real),
        "note": f"{rows:,} × {FEATURES} a step, ranks share {cores} cores; predicted ms: "
        + ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in parts.items()),
    }  # fmt: skip


def _simulated(models: Sequence[StepModel], ranks: int, alone: Sequence[float], rows: int) -> dict[str, Any]:
    """Against a real rank, which has the machine for itself: the model's own is slower, and would flatter."""
    parts = _median_parts(models, ranks, ranks)
    step_s, one_s = sum(parts.values()), statistics.median(alone)
    modelled_s = sum(_median_parts(models, 1, 1).values())
    shares = ", ".join(f"{name} {seconds / step_s:.0%}" for name, seconds in parts.items())
    return {
        "what": f"predicted, {ranks} ranks of a core each, {models[0].weights:,} weights: steps/s against 1 real rank",
        "ours": 1 / step_s, "peer": 1 / one_s, "ratio": one_s / step_s, "target": "", "met": None, "runs": len(alone),
        "note": f"parallel efficiency {one_s / step_s / ranks:.0%}, {modelled_s / step_s / ranks:.0%} against 1 rank "
        f"predicted; {shares} of a step; {rows:,} × {FEATURES} a step on {lanes_for(ranks)} lanes; network: this "
        "machine's loopback as measured",
    }  # fmt: skip


def _median_parts(models: Sequence[StepModel], ranks: int, cores: int) -> dict[str, float]:
    found = [model.parts(ranks, cores) for model in models]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


# --- the model -------------------------------------------------------------------------------------------------------


def lanes_for(ranks: int) -> int:
    """How many lanes a training of so many ranks has: the default of few ranks as long as it gives each a lane."""
    return LANES if ranks <= LANES else default_lanes(ranks)


@dataclass(frozen=True)
class Curve:
    """Seconds that were measured at some amounts, ascending: straight lines between them, in proportion beyond them."""

    at: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, found: Sequence[Sequence[float]]) -> Curve:
        """Build it from amounts and seconds, as measured."""
        amounts, seconds = found
        return cls(tuple(amounts), tuple(seconds))

    def __call__(self, amount: float) -> float:
        """Seconds for this amount; for less than was measured, as for the least."""
        return float(np.interp(amount, self.at, self.seconds)) * max(1.0, amount / self.at[-1])


@dataclass(frozen=True)
class Work:
    """Seconds of arithmetic on some addends, each a vector of as many elements.

    sizes : tuple of int
        Elements, ascending.
    curves : tuple of Curve
        For each of them the seconds by addends.
    """

    sizes: tuple[int, ...]
    curves: tuple[Curve, ...]

    @classmethod
    def of(cls, found: Sequence[Measured]) -> Work:
        """Build it from what was measured."""
        return cls(tuple(size for size, _ in found), tuple(Curve.of(curve) for _, curve in found))

    def __call__(self, addends: float, elements: float) -> float:
        """Seconds for so many."""
        return Curve(self.sizes, tuple(curve(addends) for curve in self.curves))(elements)


@dataclass(frozen=True)
class StepModel:
    """The seconds of a step, of any number of ranks.

    weights : int
    gradients : dict of int to Curve
        By the lanes of the training: what a rank takes for the gradients of a step, by the number of lanes it hosts.
    lead_s : float
        What rank 0 takes to make a step of the sum.
    deposit, add : Work
        From lanes' vectors to the bytes of their reproducible sum, and from those of several ranks to plain numbers.
    send, receive : Curve
        By bytes: how long one message keeps who sends it, and who receives it when it is there already.
    message : Curve
        By bytes: from the beginning of sending to the end of receiving, by one who waits for it.
    swap : Curve
        By bytes: an all-to-all of two ranks.
    """

    weights: int
    gradients: dict[int, Curve]
    lead_s: float
    deposit: Work
    add: Work
    send: Curve
    receive: Curve
    message: Curve
    swap: Curve

    @classmethod
    def of(cls, found: dict[str, Any]) -> StepModel:
        """Build it from the costs that `measure` has found."""
        return cls(
            weights=found["outputs"] * (FEATURES + 1),
            gradients={int(lanes): Curve.of(curve) for lanes, curve in found["gradients"].items()},
            lead_s=found["lead_s"],
            deposit=Work.of(found["deposit"]),
            add=Work.of(found["add"]),
            **{name: Curve(MESSAGE_BYTES, tuple(found[name])) for name in ("send", "receive", "message", "swap")},
        )

    def parts(self, ranks: int, cores: int) -> dict[str, float]:
        """Predict the seconds of a step's phases.

        Parameters
        ----------
        ranks : int
        cores : int
            How many all ranks share; as many as ranks: each has its own.
        """
        size = HEAD + self.weights
        lanes = lanes_for(ranks)
        most = -(-lanes // ranks)
        one = self.gradients[lanes](most)
        compute = _phase(one, ranks * one, cores) + self.lead_s
        if ranks == 1:
            return {"compute": compute, "broadcast": 0.0, "sum": self.deposit(lanes, size) + self.add(1, size)}
        if ranks * size <= GATHER_VALUES:
            total = self._short(ranks, cores, most, size)
        else:
            total = self._long(ranks, cores, most, size)
        return {"compute": compute, "broadcast": self._broadcast(ranks, cores, 8 * self.weights), "sum": total}

    def _broadcast(self, ranks: int, cores: int, count: int) -> float:
        """Rank 0 sends to one after the other; the last has it last."""
        longest = (ranks - 2) * self.send(count) + self.message(count)
        return _phase(longest, (ranks - 1) * (self.send(count) + self.receive(count)), cores)

    def _gather(self, ranks: int, cores: int, count: int) -> float:
        """Rank 0 takes in what is there already from all but the last."""
        longest = (ranks - 2) * self.receive(count) + self.message(count)
        return _phase(longest, (ranks - 1) * (self.send(count) + self.receive(count)), cores)

    def _swap(self, ranks: int, cores: int, count: int) -> float:
        """All send to all, and receive from all; the wait for what is on its way comes once."""
        busy = self.send(count) + self.receive(count)
        return _phase(self.swap(count) + (ranks - 2) * busy, ranks * (ranks - 1) * busy, cores)

    def _short(self, ranks: int, cores: int, lanes: int, size: int) -> float:
        """`ReproducibleSum` of a short vector: rank 0 gathers a sum from every rank, and adds them."""
        one = self.deposit(lanes, size)
        return _phase(one, ranks * one, cores) + self._gather(ranks, cores, _sum_bytes(size)) + self.add(ranks, size)

    def _long(self, ranks: int, cores: int, lanes: int, size: int) -> float:
        """`ReproducibleSum` of a long vector: in each round ranks swap pieces and add their own; rank 0 gathers all."""
        rounds = -(-size // (ranks * PIECE_VALUES))
        piece = size / (rounds * ranks)
        own = ranks * self.deposit(lanes, piece) + self.add(ranks, piece)
        swap = self._swap(ranks, cores, _sum_bytes(piece))
        return rounds * (_phase(own, ranks * own, cores) + swap) + self._gather(ranks, cores, 8 * size // ranks)


def _phase(longest_s: float, everyone_s: float, cores: int) -> float:
    """Ranks work side by side: a phase lasts as the longest of them, or as long as the cores need for all of them."""
    return max(longest_s, everyone_s / cores)


def _sum_bytes(size: float) -> int:
    """Bytes of a reproducible sum of vectors (`Binned.to_bytes`)."""
    return int((8 * FOLDS + 1) * size) + 4


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(context: RankContext) -> bytes:
    """A rank's program: in turns, measure the costs of a step on two ranks, and train on one, two and all.

    Who has no part in something waits for the others.
    """
    epochs = context.arguments["epochs"]
    seen: dict[int, list[dict[str, Any]]] = {outputs: [] for outputs in OUTPUTS}
    with ExitStack() as stack:
        teams = _teams(context, stack)
        store = stack.enter_context(BlockStore(context.scratch, None))
        # Its smallest team gives a rank the most lanes; in the others it has the first of them.
        held = {LANES: _filled(context, store, LANES, LANES // min(teams))}
        if 2 in teams:
            more = {lanes_for(ranks) for ranks in RANKS} - {LANES}
            held |= {lanes: _filled(context, store, lanes, lanes // 2) for lanes in more}
        for _ in range(context.arguments["turns"]):
            common = _messages(teams[2], 10 * epochs) | _adding(teams[2], 5 * epochs) if 2 in teams else {}
            for outputs in OUTPUTS:
                costs = common | _costs(teams[2], held, outputs, epochs) if 2 in teams else {}
                steps_s = {}
                for ranks in REAL:
                    context.collective.barrier()
                    if ranks in teams:
                        own = _first(held[LANES], LANES // ranks)
                        steps_s[ranks] = _train(teams[ranks], store, own, outputs, epochs)
                seen[outputs].append({"costs": costs, "steps_s": steps_s})
    return json.dumps(seen).encode()


def _teams(context: RankContext, stack: ExitStack) -> dict[int, Collective]:
    """Connect the first ranks, as many as `REAL` says, among themselves; returns what this rank is in."""
    token = context.collective.broadcast(secrets.token_bytes(32) if context.rank == 0 else None)
    teams: dict[int, Collective] = {}
    for ranks in REAL:
        listener = stack.enter_context(listen(context.host))
        told = context.collective.allgather(json.dumps([context.host, listener.getsockname()[1]]).encode())
        if context.rank < ranks:
            addresses = [(host, port) for host, port in map(json.loads, told[:ranks])]
            team = TcpCollective(context.rank, addresses, listener, token=token, step_s=60.0, start_s=60.0)
            teams[ranks] = stack.enter_context(team)
    return teams


def _filled(context: RankContext, store: BlockStore, lanes: int, own: int) -> Lanes:
    """Fill `own` lanes, of a training of so many, with an epoch's rows."""
    rows = STEPS * context.arguments["rows"] * own // lanes
    return random_lanes(store, range(context.rank * own, (context.rank + 1) * own), rows, FEATURES)


def _first(lanes: Lanes, count: int, skipped: int = 0) -> Lanes:
    return dict(list(lanes.items())[skipped : skipped + count])


def _train(team: Collective, store: BlockStore, lanes: Lanes, outputs: int, epochs: int) -> float:
    """Lead or follow a training; returns the seconds of a step, on rank 0."""
    penalty = Penalty.of(outputs, FEATURES, l2=L2, fit_intercept=True)
    everyone = Team(team, Passes(lanes, FEATURES, _loss(outputs)), _streams(lanes), FEATURES, Holding(store), penalty)
    if team.rank:
        everyone.follow()
        return 0.0
    weights, taken = np.zeros(penalty.penalised.size), []
    for epoch in range(1 + epochs):
        began = time.perf_counter()
        for step in range(STEPS):
            weights = _next(weights, penalty, everyone.batch(weights, epoch, step, STEPS))
        taken.append((time.perf_counter() - began) / STEPS)
    everyone.end()
    return statistics.median(taken[1:])


def _next(weights: Array, penalty: Penalty, total: Array) -> Array:
    """Take a step of gradient descent."""
    return weights - RATE * penalty.mean(weights, total)[1]


def _streams(lanes: Lanes) -> dict[int, LaneStream]:
    return {number: LaneStream(number, blocks, 0) for number, blocks in lanes.items()}


def _loss(outputs: int) -> Loss:
    return Logistic() if outputs == 1 else Multinomial(outputs)


# --- the costs -------------------------------------------------------------------------------------------------------


def _costs(pair: Collective, held: dict[int, Lanes], outputs: int, epochs: int) -> dict[str, Any]:
    """What `StepModel.of` takes of one case: measured on two ranks at once, by rank 0's clock."""
    return {
        "outputs": outputs,
        "gradients": {lanes: _gradients(pair, lanes, own, outputs, epochs) for lanes, own in held.items()},
        "lead_s": _leading(outputs, 10 * epochs),
    }


def _gradients(pair: Collective, lanes: int, held: Lanes, outputs: int, epochs: int) -> tuple[list[int], list[float]]:
    """Seconds of a step's gradients of ranks that host fewer and fewer lanes: (lanes of a rank, seconds).

    Half of all lanes are gone through, some in every epoch, so that rows come out of memory, as they do where there
    are more of them than a cache has room for. Of the two ranks the slower one counts, pass by pass.
    """
    half, weights, seconds = lanes // 2, np.full((outputs, FEATURES + 1), 1e-3), []
    hosted = sorted({lanes // ranks for ranks in RANKS if lanes_for(ranks) == lanes})
    for count in hosted:
        parts = [_first(held, count, skipped) for skipped in range(0, half, count)]
        passes = [(Passes(part, FEATURES, _loss(outputs)), _streams(part)) for part in parts]
        apart, taken = max(1, len(parts) // 2), []
        for epoch in range(1 + epochs):
            own = []
            for step in range(STEPS):
                for each, streams in passes[epoch % apart :: apart]:
                    pair.barrier()  # ranks begin together in a step
                    own.append(_seconds(each.batch, weights, streams, epoch, step, STEPS))
            taken.append(float(np.mean(pair.allreduce(np.array(own), "max"))))
        seconds.append(statistics.median(taken[1:]))
    return hosted, seconds


def _adding(collective: Collective, runs: int) -> dict[str, list[Measured]]:
    """Seconds of the reproducible sum's two halves: see `Work.of`."""
    partials = np.random.default_rng(0).standard_normal((LANES, 4 * PIECE_VALUES))
    deposits: list[Measured] = []
    adds: list[Measured] = []
    collective.barrier()
    for size in VECTOR_SIZES:
        pieces = [partials[:, first : first + size] for first in range(0, partials.shape[1], size)]
        rows, ranks = [each for each in ADDENDS if each <= LANES], [each for each in ADDENDS if each * size <= _MOST]
        sums = [deposit(pieces[at % len(pieces)][:2]).to_bytes() for at in range(ranks[-1])]
        turns = [pieces[at % len(pieces)] for at in range(1 + runs)]  # other elements each time, as in a step
        deposits.append((size, (rows, [_median(_deposited, [(turn[:count],) for turn in turns]) for count in rows])))
        adds.append((size, (ranks, [_median(_added, [(sums[:count], size)] * (1 + runs)) for count in ranks])))
    return {"deposit": deposits, "add": adds}


def _deposited(partials: Array) -> bytes:
    return deposit(partials).to_bytes()


def _added(sums: Sequence[bytes], size: int) -> bytes:
    return finish(merge([Binned.from_bytes(each, size) for each in sums])).tobytes()


def _leading(outputs: int, runs: int) -> float:
    """Seconds that rank 0 takes from a sum to the next weights."""
    penalty = Penalty.of(outputs, FEATURES, l2=L2, fit_intercept=True)
    weights = np.zeros(penalty.penalised.size)
    total = np.ones(HEAD + weights.size)
    return _median(_next, [(weights, penalty, total)] * (1 + runs))


def _messages(collective: Collective, runs: int) -> dict[str, list[float]]:
    """Seconds of messages of `MESSAGE_BYTES`, on rank 0: see `StepModel`."""
    found: dict[str, list[float]] = {"send": [], "receive": [], "message": [], "swap": []}
    for size in MESSAGE_BYTES:
        payload = bytes(size)
        sending, there_and_back = [], []
        for _ in range(runs):
            began = time.perf_counter()
            collective.broadcast(payload if collective.rank == 0 else None, root=0)
            sending.append(time.perf_counter() - began)
            collective.broadcast(payload if collective.rank == 1 else None, root=1)
            there_and_back.append(time.perf_counter() - began)
        found["send"].append(statistics.median(sending))
        found["message"].append(statistics.median(there_and_back) / 2)
        receiving, swapping = [], []
        for _ in range(runs):
            collective.barrier()
            if collective.rank == 0:
                _spin(2 * found["message"][-1] + _LATE_S)
            receiving.append(_seconds(collective.gather, payload))
        for _ in range(runs):
            collective.barrier()
            swapping.append(_seconds(collective.alltoall, [payload] * 2))
        found["receive"].append(statistics.median(receiving))
        found["swap"].append(statistics.median(swapping))
    return found


def _seconds(work: Callable[..., object], *arguments: Any) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def _median(work: Callable[..., object], calls: Sequence[tuple[Any, ...]]) -> float:
    """Seconds of a call with these arguments; the first one is to warm up."""
    return statistics.median([_seconds(work, *arguments) for arguments in calls][1:])


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
