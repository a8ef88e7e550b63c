"""The entry point of a boosting rank: XGBoost without scikit-learn.

XGBoost imports scikit-learn, SciPy's statistics and pandas where they are installed, only to derive its scikit-learn
classes from theirs. No rank uses these, and they are three quarters of the time that a rank takes to start.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.training.gang.context import RankContext


def run(context: RankContext) -> bytes:
    """See `pipelines.training.estimators.boosting_rank.run`."""
    from pipelines.training.estimators import boosting_rank

    return boosting_rank.run(context)


def _import_xgboost() -> None:
    if "xgboost" in sys.modules or "sklearn" in sys.modules:
        return
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # Python's own way to say that it can't be imported
    try:
        import xgboost  # noqa: F401
    finally:
        del sys.modules["sklearn"]


_import_xgboost()
