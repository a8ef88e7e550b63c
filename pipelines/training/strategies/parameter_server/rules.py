"""How does a gradient move a weight? Rules that need nothing but the weight's own row of state.

A row holds what the rule remembers of a weight, in float32; a row of zeros is a weight that was never touched, and is
worth 0. Rules are pure: rows and gradients in, rows out, element by element in float32, so that the same updates in the
same order give the same bits on every server.

Legend: g gradient, w weight, n sum of squared gradients, z FTRL's shifted sum of gradients.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from pipelines.errors import UsageError
from pipelines.training.gang.context import Array

NONE: Array = np.empty(0, np.intp)


class Rule(Protocol):
    """An update rule."""

    @property
    def columns(self) -> int:
        """Numbers that a row holds: 1 or 2."""
        ...

    def weights(self, rows: Array, free: Array = NONE) -> Array:
        """Read weights out of rows.

        Parameters
        ----------
        rows : ndarray of float32, shape (keys, columns)
        free : ndarray of int
            The rows whose weights are not penalised (the intercepts).

        Returns
        -------
        ndarray of float32, shape (keys,)
        """
        ...

    def update(self, rows: Array, gradient: Array, clock: int, free: Array = NONE) -> Array:
        """Move rows by a gradient; returns new ones.

        Parameters
        ----------
        gradient : ndarray of float32, shape (keys,)
        clock : int
            The update's number in the run, from 0.
        """
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent: w ← w - η_t·g with η_t = learning_rate / (1 + t)^power."""

    learning_rate: float = 0.1
    power: float = 0.0
    columns: int = 1

    def __post_init__(self) -> None:
        _require(self.learning_rate > 0 and self.power >= 0, self)

    def weights(self, rows: Array, free: Array = NONE) -> Array:
        """See `Rule.weights`."""
        return rows[:, 0]

    def update(self, rows: Array, gradient: Array, clock: int, free: Array = NONE) -> Array:
        """See `Rule.update`."""
        found: Array = rows - np.float32(self.learning_rate / (1 + clock) ** self.power) * gradient[:, None]
        return found


@dataclass(frozen=True)
class Adagrad:
    """Adagrad (Duchi, Hazan & Singer 2011): n ← n + g², w ← w - η·g / (√n + ε)."""

    learning_rate: float = 0.1
    epsilon: float = 1e-7
    columns: int = 2

    def __post_init__(self) -> None:
        _require(self.learning_rate > 0 and self.epsilon > 0, self)

    def weights(self, rows: Array, free: Array = NONE) -> Array:
        """See `Rule.weights`."""
        return rows[:, 0]

    def update(self, rows: Array, gradient: Array, clock: int, free: Array = NONE) -> Array:
        """See `Rule.update`."""
        new = np.empty_like(rows)
        n = rows[:, 1] + gradient * gradient
        new[:, 1] = n
        new[:, 0] = rows[:, 0] - np.float32(self.learning_rate) * gradient / (np.sqrt(n) + np.float32(self.epsilon))
        return new


@dataclass(frozen=True)
class Ftrl:
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1): learning rate α / (β + √n) for each weight, and exact zeros.

    σ = (√(n + g²) - √n) / α, z ← z + g - σ·w, n ← n + g², and
    w = 0 where |z| <= l1, else -(z - sign(z)·l1) / ((β + √n)/α + l2).

    As in the paper, `l1` and `l2` weigh against the *sum* of the gradients so far, and lose weight as the run goes on.
    """

    alpha: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    columns: int = 2

    def __post_init__(self) -> None:
        _require(self.alpha > 0 and self.beta >= 0 and self.l1 >= 0 and self.l2 >= 0, self)
        _require(self.beta + self.l2 > 0, self)

    def weights(self, rows: Array, free: Array = NONE) -> Array:
        """See `Rule.weights`."""
        return self._weights(rows[:, 0], np.sqrt(rows[:, 1]), free)

    def update(self, rows: Array, gradient: Array, clock: int, free: Array = NONE) -> Array:
        """See `Rule.update`."""
        z, n = rows[:, 0], rows[:, 1]
        new = np.empty_like(rows)
        root = np.sqrt(n)
        new[:, 1] = n + gradient * gradient
        sigma = (np.sqrt(new[:, 1]) - root) * np.float32(1 / self.alpha)
        new[:, 0] = z + gradient - sigma * self._weights(z, root, free)
        return new

    def _weights(self, z: Array, root: Array, free: Array) -> Array:
        inverse = np.float32(1 / self.alpha)
        steepness = (np.float32(self.beta) + root) * inverse + np.float32(self.l2)
        # Soft threshold: what of z is beyond ±l1.
        w: Array = (np.clip(z, np.float32(-self.l1), np.float32(self.l1)) - z) / steepness
        if len(free):
            slope = (np.float32(self.beta) + root[free]) * inverse
            w[free] = -z[free] / np.where(slope == 0, np.float32(1), slope)
        return w


AnyRule: TypeAlias = Sgd | Adagrad | Ftrl
RULES: dict[str, type[AnyRule]] = {"sgd": Sgd, "adagrad": Adagrad, "ftrl": Ftrl}


def to_plain(rule: AnyRule) -> dict[str, Any]:
    """Turn a rule into JSON values, for another process."""
    name = next(name for name, kind in RULES.items() if isinstance(rule, kind))
    return {"name": name, **asdict(rule)}


def from_plain(plain: dict[str, Any]) -> AnyRule:
    """Undo `to_plain`."""
    return RULES[plain["name"]](**{name: value for name, value in plain.items() if name != "name"})


def row_of(rule: AnyRule, weight: float) -> Array:
    """Return the row of a free weight that is `weight` before the first update, and moves from there.

    An FTRL weight is -z / ((β + √n)/α), which its updates leave as it is but for the gradient; without β there is none
    before the first gradient, and it is 0.
    """
    match rule:
        case Ftrl():
            return np.array([[-weight * rule.beta / rule.alpha, 0.0]], np.float32)
        case Adagrad():
            return np.array([[weight, 0.0]], np.float32)
        case Sgd():
            return np.array([[weight]], np.float32)


def _require(holds: bool, rule: object) -> None:
    if not holds:
        raise UsageError(
            "an update rule can't be used with these settings",
            expected="positive rates, nothing negative, and a slope (beta or l2) that is not zero",
            found=repr(rule),
        )
