"""Published models by reference, from the registry that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.registry import Registry
from pipelines.spec import find_places

if TYPE_CHECKING:
    from pipelines.model import Model
    from pipelines.serving.batch import Scored


def open_registry(url: str | None = None) -> Registry:
    """Open a registry: the one at `url`, or the one that environment and settings name."""
    return Registry.open(url or find_places().registry)


def load_model(ref: str, registry: str | None = None) -> Model:
    """Load a published model, verified.

    Parameters
    ----------
    ref : str
        ``name@alias``, ``name/version`` or ``name`` (its champion); ``models:/`` may stand before it.
    registry : str, optional
        URL of the registry; default: as environment and settings say.

    Raises
    ------
    NotFoundError
        No such model, version or alias; the nearest names are in the message.
    CorruptArtifactError
        Its bytes are not those that were published.
    """
    return open_registry(registry).load(ref)


def predict_dataset(
    model: Any, source: Any, output_url: str, *, registry: Registry | str | None = None, **options: Any
) -> Scored:
    """Score a Parquet dataset; see `pipelines.serving.batch.predict_dataset` for parameters and errors.

    Parameters
    ----------
    registry : Registry or str, optional
        Where references are looked up; default: as environment and settings say.
    """
    from pipelines.serving.batch import predict_dataset as score

    opened = registry if isinstance(registry, Registry) else open_registry(registry)
    return score(model, source, output_url, registry=opened, **options)
