"""Which round is the best, and is it time to stop? History and early stopping as state that a checkpoint holds."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from math import isfinite

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError, TrainingError
from pipelines.training.estimators.boosting_words import is_maximised

History = dict[str, dict[str, list[float | None]]]
_MAGIC = b"MTRB1"


@dataclass
class Rounds:
    """What has been boosted so far.

    Parameters
    ----------
    patience : int, optional
        Rounds without improvement after which to stop; None never stops early.
    done : int
        Rounds that have been trained.
    history : dict of split to dict of metric to list of float
        None where a metric was undefined.
    best_round : int, optional
        The round (from 0) with the best value of the last metric on the last split that is measured.
    best_score : float, optional
    """

    patience: int | None
    done: int = 0
    history: History = field(default_factory=dict)
    best_round: int | None = None
    best_score: float | None = None

    def add(self, message: str) -> dict[str, float]:
        """Take in a round's evaluation as XGBoost prints it; returns it flat, ``split-metric`` → value."""
        values = {}
        for word in message.split()[1:]:
            name, _, number = word.rpartition(":")
            split, _, metric = name.partition("-")
            value = float(number)
            # JSON has no NaN: a metric that is undefined (AUC of one class) is None.
            self.history.setdefault(split, {}).setdefault(metric, []).append(value if isfinite(value) else None)
            values[f"{split}-{metric}"] = value
        if values:
            self._judge(split, metric, value)
        self.done += 1
        return {name: value for name, value in values.items() if isfinite(value)}

    def _judge(self, split: str, metric: str, value: float) -> None:
        if not isfinite(value):
            if self.patience is None:
                return
            raise TrainingError(
                f"{metric} is {value} on {split} in round {self.done}: early stopping can't judge it",
                remedy="See whether the split has rows of every class, or use another metric.",
            )
        best = self.best_score
        better = best is None or (value > best if is_maximised(metric) else value < best)
        if better:
            self.best_round, self.best_score = self.done, value

    @property
    def exhausted(self) -> bool:
        """Whether the patience is over."""
        if self.patience is None or self.best_round is None:
            return False
        return self.done - 1 - self.best_round >= self.patience

    @property
    def used(self) -> int:
        """How many rounds the model to be saved has: up to the best one when stopping early was asked for."""
        return self.done if self.patience is None or self.best_round is None else self.best_round + 1

    def pack(self, model: bytes) -> bytes:
        """Put the state and a model into one payload."""
        state = {
            "done": self.done,
            "history": self.history,
            "best_round": self.best_round,
            "best_score": self.best_score,
        }
        head = canonical(state)
        return _MAGIC + struct.pack("<I", len(head)) + head + model

    @classmethod
    def unpack(cls, payload: bytes, patience: int | None) -> tuple[Rounds, bytes]:
        """Take apart what `pack` made."""
        try:
            if not payload.startswith(_MAGIC):
                raise ValueError("it does not begin as one")
            start = len(_MAGIC) + 4
            (length,) = struct.unpack("<I", payload[len(_MAGIC) : start])
            state = json.loads(payload[start : start + length])
            rounds = cls(patience, state["done"], state["history"], state["best_round"], state["best_score"])
        except (ValueError, KeyError, struct.error) as error:
            raise CorruptArtifactError("the boosting checkpoint can't be read", found=str(error)) from error
        return rounds, payload[start + length :]
