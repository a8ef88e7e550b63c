"""Which steps follow from the drafts and what the pass found?"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import DataError
from pipelines.features.apply import hash_buckets
from pipelines.features.config import Constant
from pipelines.features.counts import MOST_DISTINCT, Counts
from pipelines.features.moments import Moments, steady
from pipelines.features.quantiles import quantiles_of_counts, quantiles_of_sample
from pipelines.features.resolve import Draft, as_category, value_type
from pipelines.features.scan import Found
from pipelines.features.steps import Bins, Category, Cyclic, Domain, Hashed, Input, Missing, Number, Step

logger = logging.getLogger(__name__)

LARGEST = float(np.finfo(np.float32).max)

NUMBERS = "numbers"
"""Key of the sample that quantiles are taken from."""


@dataclass
class Freezer:
    """Turns drafts into steps, and gathers the dictionaries that they refer to.

    Parameters
    ----------
    found : Found
        Statistics of all shards.
    sampled : tuple of Input
        Inputs in the sample `NUMBERS`, in its order.
    """

    found: Found
    sampled: Sequence[Input]
    dictionaries: dict[str, pa.Array] = field(default_factory=dict)

    def step(self, draft: Draft) -> Step:
        """Freeze one draft.

        Raises
        ------
        DataError
            The training split has no value, too many categories, or numbers beyond float32.
        """
        match draft.role:
            case "number":
                return self._number(draft)
            case "cyclic":
                return self._cyclic(draft)
            case "bins":
                return self._bins(draft)
            case "category":
                return self._category(draft)
            case "hashed":
                return self._hashed(draft)
            case "missing":
                return Missing(draft.input)

    def stored_values(self, step: Step) -> float:
        """Expected number of values that a row of CSR stores for a step."""
        match step:
            case Category() | Bins() | Hashed():
                return 1.0
            case Cyclic():
                return 2.0
            case Number() | Missing():
                return 1.0
            case _:
                return len(step.names) * (1.0 if step.density is None else step.density)

    def _number(self, draft: Draft) -> Number:
        moments = self.found.moments[draft.input]
        center, scale = self._center_and_scale(draft, moments)
        low, high = ((value - center) / scale for value in (moments.low, moments.high))
        if moments.count and not max(abs(low), abs(high)) <= LARGEST:
            raise _error(
                draft, "values do not fit float32", expected=f"numbers up to {LARGEST:.3g} once scaled",
                found=f"{moments.low:g} … {moments.high:g}", remedy="Use scale: standard, or clip them with derive",
            )  # fmt: skip
        return Number(draft.input, center, scale, self._fill(draft, moments))

    def _center_and_scale(self, draft: Draft, moments: Moments) -> tuple[float, float]:
        if draft.scale == "none":
            return 0.0, 1.0
        if moments.count == 0:
            raise _no_values(draft, f"scale: {draft.scale}")
        if draft.scale == "standard":
            center, scale = self._steady(draft, moments)
        elif draft.scale == "minmax":
            center, scale = moments.low, moments.high - moments.low
        else:
            first, center, third = (float(q) for q in self._quantiles(draft, (0.25, 0.5, 0.75)))
            scale = third - first
        if not math.isfinite(scale):
            raise _error(
                draft, f"the range of its values is beyond float64, so scale: {draft.scale} can't be computed",
                found=f"{moments.low:g} … {moments.high:g}", remedy="Rescale or clip them with derive",
            )  # fmt: skip
        return center, scale or 1.0

    def _fill(self, draft: Draft, moments: Moments) -> float | None:
        """The value that stands for a missing one, in the column's units."""
        if draft.impute == "none":
            return None
        if isinstance(draft.impute, Constant):
            return float(draft.impute.constant)
        if moments.count == 0:
            raise _no_values(draft, f"impute: {draft.impute}")
        if draft.impute == "mean":
            return self._steady(draft, moments)[0]
        if draft.impute == "median":
            return float(self._quantiles(draft, (0.5,))[0])
        value = self._mode(draft)
        return float({"false": 0, "true": 1}.get(value, value) if isinstance(value, str) else value)

    def _steady(self, draft: Draft, moments: Moments) -> tuple[float, float]:
        try:
            return steady(moments)
        except OverflowError:
            raise _error(
                draft, "the variance of its values is beyond float64",
                found=f"{moments.low:g} … {moments.high:g}", remedy="Rescale or clip them with derive",
            ) from None  # fmt: skip

    def _mode(self, draft: Draft) -> float | str:
        counts = self.found.categories[draft.input]
        if counts.overflow:
            raise _error(
                draft, "too many distinct values to tell the most frequent one", expected=f"at most {MOST_DISTINCT}",
                remedy="Use impute: median or {constant: VALUE}",
            )  # fmt: skip
        if not len(counts.values):
            raise _no_values(draft, "impute: most_frequent")
        mode: float | str = counts.values[counts.most_frequent()].as_py()
        return mode

    def _quantiles(self, draft: Draft, shares: Sequence[float]) -> np.ndarray:
        few = self.found.few[draft.input]
        if not few.overflow:
            return quantiles_of_counts(few, shares)
        column = self.found.samples[NUMBERS][str(self.sampled.index(draft.input))]
        values = column.to_numpy()
        if not np.isfinite(values).any():
            raise _error(
                draft, "nearly all of its values are missing: none is in the sample that quantiles are taken from",
                remedy="Use scale: standard and impute: mean, or remove it",
            )  # fmt: skip
        return quantiles_of_sample(values, shares)

    def _cyclic(self, draft: Draft) -> Cyclic:
        if isinstance(draft.impute, Constant):
            return Cyclic(draft.input, fill=int(draft.impute.constant))
        if draft.impute == "most_frequent":
            return Cyclic(draft.input, fill=int(self._mode(draft)))
        return Cyclic(draft.input, centre=draft.impute != "none")

    def _bins(self, draft: Draft) -> Bins:
        moments, bins = self.found.moments[draft.input], draft.feature.bins or 2
        if moments.count == 0:
            raise _no_values(draft, f"bins: {bins}")
        shares = [place / bins for place in range(1, bins)]
        if draft.feature.bin_by == "quantile":
            edges = self._quantiles(draft, shares)
        else:
            edges = moments.low + (moments.high - moments.low) * np.array(shares)
        inner = sorted({float(edge) for edge in edges if moments.low < edge < moments.high})
        fill = self._fill(draft, moments)
        missing = draft.layout == "one_hot" and fill is None and moments.missing + moments.infinite > 0
        return Bins(draft.input, tuple(inner), draft.layout, fill, missing)

    def _category(self, draft: Draft) -> Step:
        counts = self.found.categories[draft.input]
        if counts.overflow:
            return self._without_dictionary(draft)
        if not len(counts.values) and not isinstance(draft.impute, Constant):
            raise _no_values(draft, f"encode: {draft.layout}")
        kept, other = _kept(draft, counts)
        values, fill = counts.values.filter(pa.array(kept)), None
        if isinstance(draft.impute, Constant):
            values, fill = _with_constant(draft, values)
        elif draft.impute == "most_frequent":
            fill = int(np.count_nonzero(kept[: counts.most_frequent()]))
        key = str(len(self.dictionaries))
        self.dictionaries[key] = values
        missing = draft.layout == "one_hot" and fill is None and counts.missing > 0
        return Category(draft.input, key, draft.layout, other, missing, fill)

    def _without_dictionary(self, draft: Draft) -> Hashed:
        if draft.feature.encode not in (None, "auto") or draft.impute == "most_frequent":
            raise _error(
                draft, "too many distinct values for a dictionary", expected=f"at most {MOST_DISTINCT}",
                remedy="Use encode: hash, or auto",
            )  # fmt: skip
        logger.info(
            "hash %s into %d buckets: more than %d distinct values", draft.input.name, draft.feature.buckets,
            MOST_DISTINCT,
        )  # fmt: skip
        return self._hashed(draft)

    def _hashed(self, draft: Draft) -> Hashed:
        buckets, fill = draft.feature.buckets, None
        if isinstance(draft.impute, Constant):
            value = as_category(draft.impute.constant, draft.type)
            fill = int(hash_buckets(pa.array([value.as_py()], value_type(draft)), buckets)[0]) if value else None
        return Hashed(draft.input, buckets, draft.layout, fill)


def domain_of(moments: Moments | None, counts: Counts | None, type_: pa.DataType) -> Domain:
    """Say what a column held, from what the pass counted of it."""
    if moments is None or moments.count == 0:
        return Domain(nulls=counts is not None and counts.missing > 0)
    mean, std = moments.mean, math.sqrt(moments.squares / moments.count)
    if not (math.isfinite(mean) and math.isfinite(std)):
        return Domain(nulls=moments.missing > 0)
    low, high = (float(f"{mean + side * std:.4g}") for side in (-2, 2))
    if pa.types.is_unsigned_integer(type_) or pa.types.is_boolean(type_):
        low = max(low, 0.0)
    return Domain(low, high, nulls=moments.missing > 0)


def _kept(draft: Draft, counts: Counts) -> tuple[np.ndarray, bool]:
    """Which values get a category of their own (bool, in order), and whether others share one."""
    least = draft.feature.min_frequency
    enough = counts.counts >= (least if isinstance(least, int) else least * counts.total)
    # The most frequent first, of equals the smaller value: a stable sort of the values' order.
    order = np.argsort(-counts.counts, kind="stable")[: draft.feature.max_categories]
    kept = np.zeros(len(counts.counts), bool)
    kept[order] = True
    kept &= enough
    if not kept.any() and len(kept):
        # Without any category the column would be lost without a word.
        raise _error(
            draft, f"no category reaches min_frequency: {least}", found=f"at most {counts.counts.max()} rows",
            remedy="Lower min_frequency, or remove the column",
        )  # fmt: skip
    return kept, not bool(kept.all())


def _with_constant(draft: Draft, values: pa.Array) -> tuple[pa.Array, int]:
    """Add an imputed constant to the categories, if it is not among them, and give its code."""
    assert isinstance(draft.impute, Constant)
    constant = as_category(draft.impute.constant, draft.type)
    assert constant is not None, "resolve refuses constants of another type"
    if not pc.is_in(constant, value_set=values).as_py():
        joined = pa.concat_arrays([values, pa.array([constant.as_py()], values.type)])
        values = joined.take(pc.array_sort_indices(joined))
    return values, int(pc.index(values, constant).as_py())


def _no_values(draft: Draft, what: str) -> DataError:
    return _error(
        draft, f"every value is missing in the training split, so {what} has nothing to go by",
        remedy="Remove the column, or look at filter and split",
    )  # fmt: skip


def _error(draft: Draft, what: str, *, expected: str = "", found: str = "", remedy: str = "") -> DataError:
    on = f"column {draft.input.name} (features[{draft.item}])"
    return DataError(what, on=on, expected=expected, found=found, remedy=remedy)
