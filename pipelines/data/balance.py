"""How is a sequence cut into contiguous parts whose weights differ by no more than one element?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate


def cut_evenly(weights: Sequence[int], parts: int) -> list[int]:
    """Cut a sequence into contiguous parts such that max − min of their weights ≤ the largest weight.

    Such a cut always exists (Bárány & Grinberg, "Block partitions of sequences", 2015). Their proof moves single
    elements; here the largest possible smallest part `low` is found by bisection instead: with all parts within
    ``[low, low + largest]`` the reachable ends of the i-th part form an interval, whose ends are two prefix searches.

    Parameters
    ----------
    weights : sequence of int ≥ 0
    parts : int ≥ 1

    Returns
    -------
    list of int, length parts + 1
        Boundaries from 0 to ``len(weights)``; parts may be empty where there are more parts than elements.
    """
    prefix = [0, *accumulate(weights)]
    largest = max(weights, default=0)
    low, high = 0, prefix[-1] // parts
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _earliest(prefix, parts, middle)[-1] is not None else (low, middle - 1)
    earliest = _earliest(prefix, parts, low)
    latest = [0]
    for _ in range(parts):
        latest.append(bisect_right(prefix, prefix[latest[-1]] + low + largest) - 1)
    return _walk_back(prefix, [end or 0 for end in earliest], latest, low, largest)


def _earliest(prefix: list[int], parts: int, low: int) -> list[int | None]:
    """The first position at which the i-th part can end when every part weighs at least `low`; None: nowhere."""
    ends: list[int | None] = [0]
    for _ in range(parts):
        last = ends[-1]
        end = None if last is None else bisect_left(prefix, prefix[last] + low)
        ends.append(None if end is None or end >= len(prefix) else end)
    return ends


def _walk_back(prefix: list[int], earliest: list[int], latest: list[int], low: int, largest: int) -> list[int]:
    """Choose ends from the last part to the first, each as near to its ideal place as its interval allows."""
    parts, total = len(earliest) - 1, prefix[-1]
    ends = [len(prefix) - 1]
    for i in range(parts - 1, -1, -1):
        weight = prefix[ends[-1]]
        first = max(earliest[i], bisect_left(prefix, weight - low - largest))
        last = min(latest[i], bisect_right(prefix, weight - low) - 1, ends[-1])
        ideal = bisect_left(prefix, total * i // parts)
        ends.append(min(max(ideal, first), last))
    return ends[::-1]
