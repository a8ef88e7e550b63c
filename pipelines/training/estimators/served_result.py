"""Which model is on the servers? Its weights that are not zero, or all of them where that is little."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.training.estimators.linear_setting import Job, Setting
from pipelines.training.loading import Moments
from pipelines.training.state import array_bytes
from pipelines.training.strategies.parameter_server import Client, collect_weights
from pipelines.training.strategies.parameter_server.hosting import Servers

DENSE_FEATURES = 1 << 16
"""Up to so many weights a model holds them all, as other strategies' models do."""


def model_of(job: Job, setting: Setting, moments: Moments, client: Client, servers: Servers) -> dict[str, Any]:
    """Collect the weights; returns the model's arrays as files, and what is worth knowing."""
    features = servers.layout.size - 1
    keys, found = collect_weights(client.snapshot(), servers.layout, servers.rule, servers.free)
    intercept = float(found[-1]) if len(keys) and keys[-1] == features else 0.0
    keys, found = (keys[:-1], found[:-1]) if len(keys) and keys[-1] == features else (keys, found)
    row = setting.loss.units.weights(np.append(found.astype(np.float64), intercept)[None, :])
    values, intercepts = row[0, :-1], row[:, -1]
    if features <= DENSE_FEATURES:
        coef = np.zeros((1, features))
        coef[0, keys] = values
        arrays = {"coef.npy": coef}
    else:
        arrays = {"keys.npy": keys.astype(np.int32), "values.npy": values.astype(np.float32)}
    arrays["intercept.npy"] = intercepts
    return {
        "summary": {
            "solver": job.params.solver,
            "rows": moments.rows,
            "weight": setting.weight,
            "lanes": job.lanes_total,
            "features": features,
            "nonzero": len(keys),
            "unit": setting.unit,
            "servers": client.stats(),
            **_strengths(job, setting),
        },
        "link": setting.loss.link,
        **{name: np.frombuffer(array_bytes(array), np.uint8) for name, array in arrays.items()},
    }


def _strengths(job: Job, setting: Setting) -> dict[str, float]:
    """Give l2 and l1 as they were asked for: FTRL's are its own."""
    if job.params.solver == "ftrl":
        return {"l2": job.params.l2 or 0.0, "l1": job.params.l1 or 0.0}
    return {"l2": setting.asked[0], "l1": 0.0}
