"""One matrix holds the numbers of all rows, nulls as NaN, in its caller's memory."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.dataset import Dataset
from pipelines.data.matrix import read_matrix
from pipelines.data.reader import read_batches
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import SplitPlan
from pipelines.errors import UsageError

Write = Callable[..., Dataset]


def test_columns_of_all_kinds_of_numbers_become_float32(write: Write) -> None:
    day = dt.date(2013, 1, 2)
    dataset = write(
        pa.table(
            {
                "i": pa.array([1, None, 3], pa.int16()),
                "f": pa.array([0.5, float("nan"), None]),
                "b": [True, None, False],
                "d": [day, None, day],
                "m": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(2)], pa.decimal128(9, 2)),
                "u": pa.array([2**63, 0, None], pa.uint64()),
            }
        )
    )
    found = read_matrix(
        make_source(dataset), plan_shards(dataset, ["i"], shards=1).shards, ["u", "m", "d", "b", "f", "i"]
    )
    days = float((day - dt.date(1970, 1, 1)).days)
    nan = np.nan
    expected = [[2.0**63, 1.25, days, 1, 0.5, 1], [0, nan, nan, nan, nan, nan], [nan, 2, days, 0, nan, 3]]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert found.dtype == np.float32
    assert found.flags.f_contiguous


def test_a_part_of_a_split_fills_the_beginning_of_the_callers_matrix(write: Write) -> None:
    dataset = write(pa.table({"id": np.arange(1000), "x": np.arange(1000) / 2}), row_group_size=90)
    source, shards = make_source(dataset), plan_shards(dataset, ["id"], shards=4).shards
    split = SplitPlan("hash", "id", 0.1, 0.2, 0)
    out = np.full((1200, 2), -1.0, np.float32, order="F")
    found = read_matrix(source, shards, ["x", "id"], split=split, part="test", out=out)
    reads = read_batches(source, shards, ["id"], split=split, part="test")
    expected = np.array([i for read in reads for i in read.batch["id"].to_pylist()])
    assert np.shares_memory(found, out)
    np.testing.assert_array_equal(found, np.stack([expected / 2, expected], axis=1))
    assert (out[len(found) :] == -1).all()


def test_what_is_no_number_or_does_not_fit_is_told(write: Write) -> None:
    dataset = write(pa.table({"id": np.arange(10), "t": ["x"] * 10, "n": [[1]] * 10}))
    source, shards = make_source(dataset), plan_shards(dataset, ["id"], shards=1).shards
    for name in ("t", "n"):
        with pytest.raises(UsageError, match=f"column '{name}' holds no numbers"):
            read_matrix(source, shards, [name])
    for out in (np.empty((9, 1), np.float32), np.empty((10, 1)), np.empty((10, 2), np.float32)):
        with pytest.raises(UsageError, match="the matrix does not fit"):
            read_matrix(source, shards, ["id"], out=out)
