"""From what a spec says to Optuna's words: distributions, samplers, pruners."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

from optuna import pruners, samplers
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from pipelines.training.tuning import Range, Searched, TuneConfig


def distributions(tune: TuneConfig) -> dict[str, BaseDistribution]:
    """Return the distribution of each parameter, by its name in the spec."""
    return {name: _distribution(each) for name, each in tune.space.items()}


def _distribution(searched: Searched) -> BaseDistribution:
    if not isinstance(searched, Range):
        return CategoricalDistribution(searched)
    low, high, step = searched.low, searched.high, searched.step
    values = searched.values()
    if values is not None:
        high = values[-1]  # Optuna wants the last step to be the end
    if searched.whole:
        return IntDistribution(int(low), int(high), log=searched.log, step=int(step or 1))
    return FloatDistribution(float(low), float(high), log=searched.log, step=None if step is None else float(step))


def sampler(tune: TuneConfig, number: int) -> samplers.BaseSampler:
    """Make the sampler of one trial.

    It is seeded by the trial's number: what it suggests hangs on that and on the trials before only, not on whether the
    search was interrupted in between.
    """
    seed = int.from_bytes(hashlib.sha256(f"{tune.seed}:{number}".encode()).digest()[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is called experimental
        match tune.sampler:
            case "grid":
                return samplers.GridSampler(tune.grid(), seed=tune.seed)
            case "random":
                return samplers.RandomSampler(seed=seed)
            case "cmaes":
                others = samplers.RandomSampler(seed=seed)
                return samplers.CmaEsSampler(seed=seed, independent_sampler=others, warn_independent_sampling=False)
            case "tpe":
                return samplers.TPESampler(seed=seed, constant_liar=tune.parallel > 1)


def pruner(tune: TuneConfig) -> pruners.BasePruner:
    """Make the pruner."""
    made: dict[str, Any] = {
        "none": pruners.NopPruner,
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
        "successive_halving": pruners.SuccessiveHalvingPruner,
    }
    found: pruners.BasePruner = made[tune.pruner]()
    return found
