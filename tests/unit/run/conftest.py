"""Small specs on the sample data, with stores of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FLIGHTS = Path(__file__).parents[3] / "data_samples" / "flights"


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Make a spec on the flights of January whose runs and models live in the test's own folder."""

    def make(**changes: Any) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "name": "small",
            "data": {"source": str(FLIGHTS), "filter": "month == 1", "derive": {"late": "arr_delay > 15"}},
            "label": {"column": "late", "on_null": "drop"},
            "split": {"kind": "grouped", "by": "day", "validation": 0.2, "test": 0.2, "seed": 3},
            "features": [
                {"columns": ["distance", "weather_temp"], "scale": "standard", "impute": "mean"},
                {"columns": ["carrier", "origin"], "encode": "one_hot"},
            ],
            "train": {"estimator": "logistic_regression", "params": {"l2": 1e-4}},
            "evaluate": {"metrics": ["auc", "log_loss"], "segments": ["origin"]},
            "publish": {"model": "small", "promote": "if_better", "metric": "auc"},
            "cluster": {"workers": 1, "worker": {"memory": "1 GiB"}},
            "runs": str(tmp_path / "runs"),
            "registry": str(tmp_path / "registry"),
        }
        return spec | changes

    return make
