"""Which weights has a model? Those of a snapshot that are not zero, by the features' own keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.rules import Rule
from pipelines.training.strategies.parameter_server.shard import places_of


def collect_weights(
    pieces: Iterable[tuple[int, Array, Array]], layout: Layout, rule: Rule, free: Sequence[int] = ()
) -> tuple[Array, Array]:
    """Turn a `Client.snapshot` into a model.

    Parameters
    ----------
    pieces : iterable of (shard, keys in the shard, rows)
    layout, rule, free
        As the servers have them.

    Returns
    -------
    keys : ndarray of int64, ascending
    weights : ndarray of float32, none of them 0
    """
    found_keys, found_weights = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    homes = [layout.find(key) for key in free]
    for shard, keys, rows in pieces:
        own = np.array(sorted(place for each, place in homes if each == shard), np.int64)
        weights = rule.weights(rows, places_of(own, keys))
        kept = np.flatnonzero(weights)
        found_keys.append(layout.keys(keys[kept].astype(np.int64) + layout.bounds[shard]))
        found_weights.append(weights[kept])
    keys = np.concatenate(found_keys)
    order = np.argsort(keys)
    return keys[order], np.concatenate(found_weights)[order]
