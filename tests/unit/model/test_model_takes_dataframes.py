"""A DataFrame is predicted as the same rows in Arrow are."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from pipelines.model import Model


def test_a_pandas_frame_gives_the_same_predictions(model: Model, rows: Callable[..., pa.Table]) -> None:
    table = rows(50)
    assert model.predict(table.to_pandas()).equals(model.predict(table))
