"""XGBoost's parameters as a spec writes them: its own words, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipelines.config import Config
from pipelines.errors import Fault, SpecError
from pipelines.training.estimators.boosting_words import (
    OBJECTIVES,
    unfit_metric,
    unfit_objective,
    unknown_metric,
    unknown_objective,
)

_ALIASES = {
    "eta": "learning_rate",
    "min_split_loss": "gamma",
    "lambda": "reg_lambda",
    "alpha": "reg_alpha",
    "n_estimators": "num_boost_round",
}
_ELSEWHERE = {
    "nthread": "the workers' threads decide it: set cluster.worker.threads",
    "n_jobs": "the workers' threads decide it: set cluster.worker.threads",
    "seed": "set train.random_state",
    "random_state": "set train.random_state",
    "num_class": "the label's classes decide it: remove it",
    "sample_weight": "set train.sample_weight to the column",
    "class_weight": "set train.class_weight",
    "enable_categorical": "the feature plan says which columns are categories: remove it",
    "feature_types": "the feature plan says which columns are categories: remove it",
    "missing": "Parquet nulls are missing values: remove it",
    "updater": "it follows from tree_method and booster: remove it",
    "process_type": "only new trees are grown: remove it",
    "verbosity": "progress is shown by the run: remove it",
    "validate_parameters": "parameters are always validated: remove it",
    "callbacks": "checkpoints, progress and early stopping are built in: remove it",
}
_NOT_BOOSTER = (
    "cuts",
    "num_boost_round",
    "early_stopping_rounds",
    "evals",
    "monotone_constraints",
    "interaction_constraints",
)

Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, le=1)]


class XGBoostParams(Config):
    """`params` of ``estimator: xgboost``; what is not set is left to XGBoost's own defaults."""

    num_boost_round: Annotated[int, Field(ge=1)] = 100
    early_stopping_rounds: Annotated[int, Field(ge=1)] | None = None
    """Stop when the last metric of `eval_metric` has not improved on the last of `evals` for so many rounds."""
    evals: tuple[Literal["train", "validation"], ...] | None = None
    """Splits that are measured each round; default: validation, if it has rows. Measuring train costs time."""

    objective: str | None = None
    """Default: ``binary:logistic``, ``multi:softprob`` or ``reg:squarederror``, as the label is."""
    cuts: Literal["sample", "native"] = "sample"
    """Borders of bins: quantiles of a sample of all ranks' rows (up to 262,144), the same for any number of ranks; or
    XGBoost's own sketch, which costs more than half of the time of binning. Sparse features always use the latter."""
    eval_metric: tuple[str, ...] | None = None
    """The last one decides early stopping. XGBoost averages `auc` and `aucpr` over ranks (seen: 1e-3 off);
    the evaluation after training is exact."""
    base_score: float | None = None

    booster: Literal["gbtree", "dart"] = "gbtree"
    tree_method: Literal["auto", "hist"] = "hist"
    device: str = "cpu"

    learning_rate: Rate | None = None
    max_depth: Annotated[int, Field(ge=0)] | None = None
    max_leaves: Annotated[int, Field(ge=0)] | None = None
    grow_policy: Literal["depthwise", "lossguide"] | None = None
    min_child_weight: Annotated[float, Field(ge=0)] | None = None
    gamma: Annotated[float, Field(ge=0)] | None = None
    max_delta_step: Annotated[float, Field(ge=0)] | None = None
    reg_lambda: Annotated[float, Field(ge=0)] | None = None
    reg_alpha: Annotated[float, Field(ge=0)] | None = None
    scale_pos_weight: Annotated[float, Field(gt=0)] | None = None
    subsample: Share | None = None
    sampling_method: Literal["uniform"] | None = None
    colsample_bytree: Share | None = None
    colsample_bylevel: Share | None = None
    colsample_bynode: Share | None = None
    num_parallel_tree: Annotated[int, Field(ge=1)] | None = None
    max_bin: Annotated[int, Field(ge=2, le=65_536)] | None = None
    max_cat_to_onehot: Annotated[int, Field(ge=1)] | None = None
    max_cat_threshold: Annotated[int, Field(ge=1)] | None = None
    multi_strategy: Literal["one_output_per_tree"] | None = None
    monotone_constraints: dict[str, Literal[-1, 0, 1]] | None = None
    """By feature: 1 increasing, -1 decreasing."""
    interaction_constraints: tuple[tuple[str, ...], ...] | None = None
    """Groups of features that may meet in one branch."""

    rate_drop: Rate | None = None
    skip_drop: Rate | None = None
    one_drop: bool | None = None
    sample_type: Literal["uniform", "weighted"] | None = None
    normalize_type: Literal["tree", "forest"] | None = None

    huber_slope: Annotated[float, Field(gt=0)] | None = None
    tweedie_variance_power: Annotated[float, Field(gt=1, lt=2)] | None = None
    quantile_alpha: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _say_one_name(cls, value: object) -> object:
        """Rewrite XGBoost's own synonyms; a value given under both names stays a fault (the synonym is unknown)."""
        if not isinstance(value, Mapping):
            return value
        twice = {alias for alias, name in _ALIASES.items() if name in value}
        return {key if key in twice else _ALIASES.get(str(key), key): each for key, each in value.items()}

    @field_validator("eval_metric", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("eval_metric")
    @classmethod
    def _know_metrics(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if misfit := unknown_metric(name):
                raise ValueError(f"{misfit.message}. {misfit.fix}")
        return value

    @field_validator("objective")
    @classmethod
    def _know_objective(cls, value: str | None) -> str | None:
        if value is not None and (misfit := unknown_objective(value)):
            raise ValueError(f"{misfit.message}. {misfit.fix}")
        return value

    @field_validator("booster", mode="before")
    @classmethod
    def _no_linear_booster(cls, value: object) -> object:
        if value == "gblinear":
            raise ValueError("gblinear grows no trees: use estimator logistic_regression or linear_regression")
        return value

    @field_validator("tree_method", mode="before")
    @classmethod
    def _only_hist(cls, value: object) -> object:
        if value in ("exact", "approx"):
            raise ValueError(f"{value} needs the raw values in memory, and rows are binned as they are read: use hist")
        if value == "gpu_hist":
            raise ValueError("gpu_hist is gone from XGBoost: tree_method is hist, and device says where")
        return value

    @field_validator("device")
    @classmethod
    def _only_cpu(cls, value: str) -> str:
        if value != "cpu":
            # XGBoost itself would train on the CPU without a word where it finds no GPU.
            raise ValueError(f"training on {value} is not there in this version: device: cpu does")
        return value

    @model_validator(mode="after")
    def _go_together(self) -> XGBoostParams:
        dart = ("rate_drop", "skip_drop", "one_drop", "sample_type", "normalize_type")
        lost = [name for name in dart if getattr(self, name) is not None]
        if self.booster != "dart" and lost:
            raise ValueError(f"{', '.join(lost)} only work with booster: dart")
        for name, objective in (
            ("huber_slope", "reg:pseudohubererror"),
            ("tweedie_variance_power", "reg:tweedie"),
            ("quantile_alpha", "reg:quantileerror"),
        ):
            if getattr(self, name) is not None and self.objective != objective:
                raise ValueError(f"{name} only works with objective: {objective}")
        if self.objective == "reg:quantileerror" and self.quantile_alpha is None:
            raise ValueError("objective: reg:quantileerror needs quantile_alpha, the quantile to predict")
        if self.early_stopping_rounds is not None and self.evals == ():
            raise ValueError("early_stopping_rounds needs a split to look at: evals is empty")
        return self

    def for_label(self, kind: str) -> str:
        """Give the objective for a kind of label."""
        return self.objective or OBJECTIVES[kind]

    def booster_words(self) -> dict[str, Any]:
        """Give what is set of XGBoost's own booster parameters, without the objective."""
        words = self.model_dump(exclude_none=True, exclude={*_NOT_BOOSTER, "objective"})
        if "eval_metric" in words:
            words["eval_metric"] = list(words["eval_metric"])
        return words | {"tree_method": "hist"}


def check_params(params: Mapping[str, Any]) -> XGBoostParams:
    """Validate `params` of a spec.

    Raises
    ------
    ValidationError
        With every fault; an unknown word has the nearest names in its message.
    """
    try:
        return XGBoostParams.model_validate(dict(params))
    except ValidationError as error:
        details = [_better(item) for item in error.errors(include_url=False)]
        raise ValidationError.from_exception_data("xgboost", details) from None


def _better(item: Any) -> InitErrorDetails:
    loc = tuple(item["loc"])
    if item["type"] == "extra_forbidden":
        message = _unknown_word(str(loc[-1]))
        return InitErrorDetails(type=PydanticCustomError("value_error", "{m}", {"m": message}), loc=loc, input="")
    # Rebuilt with its text: pydantic can't take its own context (an exception) back.
    message = str(item["msg"]).removeprefix("Value error, ")
    kind = PydanticCustomError(item["type"], "{m}", {"m": message})
    return InitErrorDetails(type=kind, loc=loc, input=item["input"])


def _unknown_word(name: str) -> str:
    if name in _ELSEWHERE:
        return f"{name} is not set here: {_ELSEWHERE[name]}"
    if name in _ALIASES:
        return f"{name} and {_ALIASES[name]} are the same: give one of them"
    known = [*XGBoostParams.model_fields, *_ALIASES]
    near = get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "see XGBoost's list of parameters"
    return f"XGBoost has no parameter {name!r} (it would ignore it): {hint}"


def check_target(
    params: XGBoostParams, kind: str, names: tuple[str, ...] | None = None, *, weighted: bool = False
) -> None:
    """Check parameters against the label, and against the features where their `names` are known.

    Raises
    ------
    SpecError
        With every fault.
    """
    faults = list(_label_faults(params, kind, weighted))
    if names is not None:
        faults += _name_faults(params, names)
    if faults:
        raise SpecError(faults)


def _label_faults(params: XGBoostParams, kind: str, weighted: bool) -> Iterator[Fault]:
    if params.objective and (misfit := unfit_objective(params.objective, kind)):
        yield Fault("train.params.objective", misfit.message, misfit.fix)
    for name in params.eval_metric or ():
        if misfit := unfit_metric(name, kind, params.for_label(kind)):
            yield Fault("train.params.eval_metric", misfit.message, misfit.fix)
    if params.scale_pos_weight is not None and kind != "binary":
        yield Fault("train.params.scale_pos_weight", f"a {kind} label has no positive class", "Use train.class_weight")
    elif params.scale_pos_weight is not None and weighted:
        yield Fault("train.params.scale_pos_weight", "the classes are weighted twice", "Remove it or class_weight")


def _name_faults(params: XGBoostParams, names: tuple[str, ...]) -> Iterator[Fault]:
    asked = [("monotone_constraints", name) for name in params.monotone_constraints or ()]
    asked += [("interaction_constraints", name) for group in params.interaction_constraints or () for name in group]
    for word, name in asked:
        if name not in names:
            near = get_close_matches(name, names, n=3, cutoff=0.5) or list(names[:8])
            yield Fault(f"train.params.{word}", f"there is no feature {name!r}", f"Did you mean {', '.join(near)}?")
