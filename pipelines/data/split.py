"""Which rows train, which validate, which test? A pure function of values, the same for any layout of the files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from pipelines.config import Config
from pipelines.data.hashing import hash_rows, hash_values, seed_word
from pipelines.data.rows import RowIds
from pipelines.errors import DataError

PARTS = ("train", "validation", "test")
"""Parts by the number that `SplitPlan.assign` gives."""

TRAIN, VALIDATION, TEST = range(3)


class SplitConfig(Config):
    """Spec key ``split:``.

    Attributes
    ----------
    kind : {"hash", "grouped", "stratified", "time"}
        hash: by a hash of `by`, or of the row's identity (file, row group, row) where `by` is left out. grouped: by a
        hash of `by`, so that rows with equal values stay together (so they do with hash and `by`; this says it).
        stratified: the shares hold within every value of `by`, exactly; the row's identity decides within it. time:
        the rows with the latest values of `by` are tested, those before them validate.
    by : str, optional
        A column, derived ones too. A null is a value like any other: all its rows go to one part (hash, grouped), or
        they are a stratum of their own; rows whose time is null train.
    validation, test : float
        Shares of the rows (hash with `by`, and grouped: of the values); the rest trains.
    seed : int
    """

    kind: Literal["hash", "grouped", "stratified", "time"] = "hash"
    by: str | None = None
    validation: float = Field(0.1, ge=0, lt=1)
    test: float = Field(0.2, ge=0, lt=1)
    seed: int = 0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        if self.by is None and self.kind != "hash":
            raise ValueError(f"a {self.kind} split needs `by`: the column to split by")
        return self


@dataclass(frozen=True)
class Stratum:
    """Thresholds of one value: hashes below `test` are tested, below `validation` validate, the others train."""

    value: str | None
    hash: int
    rows: int
    test: int
    validation: int


@dataclass(frozen=True)
class Cuts:
    """Boundaries on a time scale: from `test` on rows are tested, from `validation` on they validate.

    Parameters
    ----------
    scale : {"time", "integer", "number"}
        What the boundaries count: microseconds since 1970, values, or values as their ordered bits.
    validation, test : int
    validation_text, test_text : str
        The same for humans.
    """

    scale: str
    validation: int
    test: int
    validation_text: str
    test_text: str


@dataclass(frozen=True)
class SplitPlan:
    """A fitted split: JSON-able, and all that any process needs to tell a row's part."""

    kind: str
    by: str | None
    validation: float
    test: float
    seed: int
    strata: tuple[Stratum, ...] = ()
    cuts: Cuts | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `assign` needs."""
        return () if self.by is None else (self.by,)

    def assign(self, batch: pa.RecordBatch, rows: RowIds | None = None) -> np.ndarray:
        """Tell each row's part.

        Parameters
        ----------
        batch : RecordBatch
            Has ``self.columns``.
        rows : RowIds, optional
            Needed where the row's identity decides: hash without `by`, stratified.

        Returns
        -------
        ndarray of int8, shape (rows,)
            0 train, 1 validation, 2 test.
        """
        if self.kind == "time":
            return self._by_time(batch[self.by])
        hashes = self.row_hashes(rows) if self.by is None or self.kind == "stratified" else self._key_hashes(batch)
        test, validation = self._of_strata(batch) if self.kind == "stratified" else self._of_shares()
        # A threshold of test is never above that of validation: below both is 2, test; below one is 1.
        return (hashes < test).view(np.int8) + (hashes < validation).view(np.int8)

    def row_hashes(self, rows: RowIds | None) -> np.ndarray:
        """Hashes of rows' identities (uint64)."""
        if rows is None:
            raise DataError(
                "this split goes by rows' identities, which the batch does not have", on=f"split {self.kind}"
            )
        return hash_rows(rows.path, rows.row_group, rows.rows, seed_word("split", self.seed))

    def _key_hashes(self, batch: pa.RecordBatch) -> np.ndarray:
        return hash_values(batch[self.by], seed_word("split", self.seed))

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ordered = sorted(self.strata, key=lambda stratum: stratum.hash)
        hashes = np.array([stratum.hash for stratum in ordered], np.uint64)
        tests = np.array([min(stratum.test, _TOP) for stratum in ordered], np.uint64)
        return hashes, tests, np.array([min(stratum.validation, _TOP) for stratum in ordered], np.uint64)

    def _of_shares(self) -> tuple[np.ndarray, np.ndarray]:
        return _threshold(self.test), _threshold(self.test + self.validation)

    def _of_strata(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Thresholds of every row; a value that was not there when the split was fitted takes the shares' own."""
        known, tests, validations = self._tables
        test, validation = self._of_shares()
        found = hash_values(batch[self.by])
        if not len(known):
            return np.full(len(found), test), np.full(len(found), validation)
        places = np.minimum(np.searchsorted(known, found), len(known) - 1)
        met = known[places] == found
        return np.where(met, tests[places], test), np.where(met, validations[places], validation)

    def _by_time(self, values: pa.Array) -> np.ndarray:
        assert self.cuts is not None, "a time split is fitted"
        moments, valid = time_scale(values, self.cuts.scale)
        parts = np.where(moments >= self.cuts.test, TEST, np.where(moments >= self.cuts.validation, VALIDATION, TRAIN))
        return np.where(valid, parts, TRAIN).astype(np.int8)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


_TOP = (1 << 64) - 1


def _threshold(share: float) -> np.ndarray:
    return np.array(min(int(share * 2.0**64), _TOP), np.uint64)


def scale_of(type: pa.DataType) -> str | None:
    """The scale on which a time split puts values of a type, or None where they have no order in time."""
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        return "time"
    if pa.types.is_integer(type):
        return "integer"
    return "number" if pa.types.is_floating(type) else None


def time_scale(values: pa.Array, scale: str) -> tuple[np.ndarray, np.ndarray]:
    """Put values on a scale of integers, in their order.

    Returns
    -------
    moments : ndarray of int64
    valid : ndarray of bool
        False where a value is null or NaN.
    """
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if scale == "time":
        type = values.type
        if pa.types.is_timestamp(type):
            steps = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[type.unit]
            moments = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
            return (moments // 1000 if type.unit == "ns" else moments * steps), valid
        micros = values.cast(pa.timestamp("us")).cast(pa.int64())
        return pc.fill_null(micros, 0).to_numpy(zero_copy_only=False), valid
    if scale == "integer":
        return pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), valid
    numbers = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = numbers.view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits - 1, bits), valid & ~np.isnan(numbers)


def scale_text(moment: int, scale: str) -> str:
    """Write a place on a scale for humans."""
    if scale == "time":
        return str(pa.scalar(moment, pa.int64()).cast(pa.timestamp("us")).cast(pa.string()))
    if scale == "integer":
        return str(moment)
    bits = np.int64(moment) if moment >= 0 else np.int64(-(2**63) - moment - 1)
    return repr(float(bits.view(np.float64)))
