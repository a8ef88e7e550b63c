"""In which order are samples visited? Permutations as pure functions of seed, epoch and lane."""

from __future__ import annotations

import hashlib

import numpy as np


def random_words(count: int, *key: int | str) -> np.ndarray:
    """Random 64-bit words as a pure function of a key: the same on every machine and with every NumPy.

    NumPy promises the streams of its *bit generators* for ever, but not those of ``Generator`` (NEP 19), so no
    method of ``Generator`` is used: these are SplitMix64's outputs (Steele, Lea & Flood 2014) at the counters
    ``0 … count − 1`` from a start that is the SHA-256 of the key.

    Parameters
    ----------
    count : int
    *key : int or str
        What names the stream: seed, epoch, lane …

    Returns
    -------
    ndarray of uint64, shape (count,)
    """
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    start = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    return mix(start + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=np.uint64))


def epoch_order(seed: int, epoch: int, lane: int, n: int) -> np.ndarray:
    """Permutation of ``range(n)`` for one lane in one epoch: a pure function, the same on every machine.

    Parameters
    ----------
    seed, epoch, lane : int
    n : int
        How many things to order: shards, blocks or the rows of a buffer.

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    return permutation(n, "order", seed, epoch, lane)


def permutation(n: int, *key: int | str) -> np.ndarray:
    """Permutation of ``range(n)`` under any key: a stable sort by random words (ties have odds of n² / 2⁶⁵)."""
    return np.argsort(random_words(n, *key), kind="stable")


def mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every bit of a word comes to hang on every other.

    Parameters
    ----------
    words : ndarray of uint64
    """
    words = words ^ (words >> np.uint64(30))  # a new array; the rest in place
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
