"""Which model is on the servers? Its weights that are not zero, or all of them where that is little."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.training.estimators.linear_setting import Job, Setting
from pipelines.training.loading import Moments
from pipelines.training.state import array_bytes
from pipelines.training.strategies.parameter_server import Client, collect_weights
from pipelines.training.strategies.parameter_server.hosting import Servers

DENSE_WEIGHTS = 1 << 16
"""Up to so many weights a model holds them all, as other strategies' models do."""


def model_of(job: Job, setting: Setting, moments: Moments, client: Client, servers: Servers) -> dict[str, Any]:
    """Collect the weights; returns the model's arrays as files, and what is worth knowing."""
    features, outputs = job.data.features.width, job.data.outputs
    keys, found = collect_weights(client.snapshot(), servers.layout, servers.rule, servers.free)
    nonzero = int(np.count_nonzero(keys < features * outputs))
    at, output = np.divmod(keys, outputs)
    places, columns = np.unique(np.append(at, features), return_inverse=True)  # the intercepts' place is always there
    weights = np.zeros((outputs, len(places)))
    weights[output, columns[:-1]] = found
    weights = setting.loss.units.weights(weights)
    values, intercepts = weights[:, :-1], weights[:, -1]
    if features * outputs <= DENSE_WEIGHTS:
        coef = np.zeros((outputs, features))
        coef[:, places[:-1]] = values
        arrays = {"coef.npy": coef}
    else:
        rows = values[0] if outputs == 1 else np.ascontiguousarray(values.T)
        arrays = {"keys.npy": places[:-1].astype(np.int32), "values.npy": rows.astype(np.float32)}
    arrays["intercept.npy"] = intercepts
    return {
        "summary": {
            "solver": job.params.solver,
            "rows": moments.rows,
            "weight": setting.weight,
            "lanes": job.lanes_total,
            "features": features,
            "nonzero": nonzero,
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
