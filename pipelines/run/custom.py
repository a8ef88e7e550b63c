"""Custom stages: the user's own functions, called in the driver."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.errors import MutiraoError, UserCodeError
from pipelines.plan.value import PlannedStage
from pipelines.run.context import StageContext
from pipelines.run.stages import Work

_MAKERS: dict[str, tuple[str, ...]] = {
    "split": ("split",),
    "features": ("split", "features"),
    "train": ("split", "features", "model"),
    "evaluate": ("split", "features", "model", "evaluate"),
}
"""What a stage may look at when it needs a built-in one."""


def run_custom(work: Work, stage: PlannedStage, results: Mapping[str, Any]) -> Any:
    """Call a custom stage's function; returns its JSON-able result.

    Raises
    ------
    UserCodeError
        The function can't be imported, raised, or returned something that is not JSON.
    """
    config = next(config for config in work.compiled.spec.stages if config.name == stage.name)
    function = _import(config.call)
    needs = _all_needs(work, stage)
    trained = "evaluate" if "evaluate" in needs else "train"
    makers: dict[str, Callable[[], Any]] = {
        "split": work.split,
        "features": work.fitted,
        "model": lambda: work.model(trained),
        "evaluate": work.evaluation,
    }
    visible = {name for need in needs for name in _MAKERS.get(need, ())}
    context = StageContext(
        client=work.client(),
        dataset=work.compiled.dataset,
        source=work.compiled.source,
        shards=work.compiled.shards,
        params=config.params,
        results={need: results.get(need) for need in needs if need not in _MAKERS},
        built_in={name: maker for name, maker in makers.items() if name in visible},
    )
    try:
        result = function(context)
    except MutiraoError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(
            f"stage {stage.name!r} raised {type(error).__name__}: {error}",
            on=config.call,
            remedy="Mend the function; `mutirao run resume` goes on from here.",
        ) from error
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserCodeError(
            f"stage {stage.name!r} returned what is not JSON: {error}",
            on=config.call,
            remedy="Return None, numbers, texts, lists and dicts; write larger results to a store yourself.",
        ) from None


def _all_needs(work: Work, stage: PlannedStage) -> tuple[str, ...]:
    """The stages that a stage needs, directly or through others."""
    found: dict[str, None] = {}
    waiting = list(stage.needs)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = None
            waiting += work.compiled.plan.by_name[name].needs
    return tuple(found)


def _import(target: str) -> Callable[[StageContext], Any]:
    module, _, name = target.partition(":")
    try:
        function: Callable[[StageContext], Any] = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise UserCodeError(
            f"can't be imported: {type(error).__name__}: {error}",
            on=target,
            remedy="Name its file or package under `code:`, or install it.",
        ) from error
    return function
