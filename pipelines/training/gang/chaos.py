"""Which faults are injected into a training on purpose, and when? A pure function of what was asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from pipelines.errors import UsageError

Harm: TypeAlias = Literal["kill", "stop", "slow", "worker", "driver"]

HARMS: dict[Harm, str] = {
    "kill": "kill a rank",
    "stop": "stop a rank (SIGSTOP)",
    "slow": "slow a rank",
    "worker": "kill a whole worker",
    "driver": "kill the driver",
}
MOST = 100
GAP_WORDS = 32
"""At most so many words of ranks (seconds) lie between a fault and the next one, and half of the time fewer than six: a
training of a second is hit, too, and a longer one also in its middle."""
_EXAMPLE = "--chaos 'kill=2, stop=1, slow=1:3x, worker=1, driver=1, seed=7'"


@dataclass(frozen=True)
class Fault:
    """One fault of a plan.

    Attributes
    ----------
    number : int
        From 1, in the order in which they strike.
    harm : str
    gap : int
        How many words the ranks say (arrivals, progress, steps committed) between the fault before, or the start, and
        this one.
    draw : float
        In [0, 1): which of the ranks that are there is hit.
    factor : float
        How many times slower it gets.
    """

    number: int
    harm: Harm
    gap: int
    draw: float
    factor: float = 1.0

    def __str__(self) -> str:
        by = f" {self.factor:g}-fold" if self.harm == "slow" else ""
        return f"{HARMS[self.harm]}{by}"


@dataclass(frozen=True)
class ChaosSpec:
    """What was asked for: how many of each harm, and the seed of when and whom they hit."""

    kill: int = 0
    stop: int = 0
    slow: int = 0
    factor: float = 2.0
    worker: int = 0
    driver: int = 0
    seed: int = 0

    def __str__(self) -> str:
        slow = f"slow={self.slow}:{self.factor:g}x" if self.slow else ""
        counts = [
            f"{harm}={getattr(self, harm)}" for harm in ("kill", "stop", "worker", "driver") if getattr(self, harm)
        ]
        return ", ".join([*counts, *([slow] if slow else []), f"seed={self.seed}"])


def parse_chaos(text: str) -> ChaosSpec:
    """Read ``"kill=2, stop=1, slow=1:3x, seed=7"``.

    Raises
    ------
    UsageError
        It can't be read, or asks for what can't be done; says which part and how to write it.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        word, equals, value = (each.strip() for each in part.partition("="))
        if word not in (*HARMS, "seed"):
            near = get_close_matches(word, [*HARMS, "seed"], 1)
            raise _refusal(f"there is no {word!r}", part, f"one of {', '.join([*HARMS, 'seed'])}", near)
        if word in found:
            raise _refusal(f"{word} is said twice", part, "one number for each", [])
        read = re.fullmatch(r"(\d{1,9})(?::(\d+(?:\.\d+)?)x)?" if word == "slow" else r"(\d{1,9})", value)
        if not equals or read is None:
            wanted = "slow=COUNT:FACTORx, as in slow=1:3x" if word == "slow" else f"{word}=COUNT, as in {word}=1"
            raise _refusal("can't be read", part, wanted, [])
        found[word] = int(read[1])
        if word == "slow" and read[2]:
            found["factor"] = float(read[2])
    spec = ChaosSpec(**found)
    total = sum(getattr(spec, harm) for harm in HARMS)
    if not 1 <= total <= MOST:
        raise _refusal(f"{total} faults", text, f"between 1 and {MOST}", [])
    if spec.driver > 1:
        raise _refusal("the driver is killed once at most", f"driver={spec.driver}", "driver=1", [])
    if not 1 < spec.factor <= 100:
        raise _refusal("not a factor to slow by", f"slow={spec.slow}:{spec.factor:g}x", "above 1x, at most 100x", [])
    return spec


def plan_faults(spec: ChaosSpec) -> tuple[Fault, ...]:
    """Lay out the faults of a spec, in the order in which they strike. The same spec gives the same plan."""
    rng = random.Random(f"mutirao chaos {spec}")  # a text seeds it alike on every platform and run
    harms: list[Harm] = [harm for harm in HARMS for _ in range(getattr(spec, harm))]
    rng.shuffle(harms)
    return tuple(
        Fault(number, harm, int(GAP_WORDS ** rng.random()), rng.random(), spec.factor if harm == "slow" else 1.0)
        for number, harm in enumerate(harms, 1)
    )


def told(faults: tuple[Fault, ...]) -> Iterator[str]:
    """Say a plan in words, a line for each fault."""
    words = 0
    for fault in faults:
        words += fault.gap
        yield f"{fault.number}. {fault}, after {words} word{'s' if words > 1 else ''} of the ranks"


def _refusal(what: str, found: str, expected: str, near: list[str]) -> UsageError:
    remedy = f"Did you mean {near[0]!r}? " if near else ""
    return UsageError(what, on="--chaos", expected=expected, found=found, remedy=f"{remedy}For example {_EXAMPLE}.")
