"""What can be said under `params:` of linear models, and what can't be said together?"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from pipelines.config import Config
from pipelines.training.config import TrainConfig
from pipelines.training.optimisers.schedules import Schedule

Solver = Literal["auto", "lbfgs", "owlqn", "newton", "sgd", "momentum", "adam", "ftrl", "adagrad"]

MINI_BATCH = ("sgd", "momentum", "adam")
SERVED = ("ftrl", "adagrad", "sgd")
"""What a parameter server's rules are."""
_MINI_BATCH_ONLY = (
    "learning_rate", "schedule", "power", "warmup", "momentum", "batch_rows", "epochs",
)  # fmt: skip


class LinearParams(Config):
    """`params:` of ``logistic_regression``, and what all linear models share.

    The objective is the mean of weighted losses + l2/2·‖w‖² + l1·‖w‖₁, the intercept free. The loss of
    ``logistic_regression`` is the cross-entropy, binary or softmax.

    Parameters
    ----------
    l2, l1 : float
        Both together are the elastic net.
    C : float, optional
        scikit-learn's inverse strength, instead of l2 and l1: their sum is 1 / (C · sum of weights), shared by
        `l1_ratio`. Default for classifiers when nothing is said: C = 1; linear regression has no penalty then.
    l1_ratio : float
        Share of the 1-norm with `C`.
    solver : {"auto", "lbfgs", "owlqn", "newton", "sgd", "momentum", "adam", "ftrl", "adagrad"}
        auto: Newton's method up to 500 weights (not for softmax), else L-BFGS, or OWL-QN with l1. With ``strategy:
        parameter_server``: ftrl (auto), adagrad or sgd.
    tol : float
        Stop when the largest component of the objective's (sub)gradient is at most this; labels of linear regression
        count in standard deviations (means with a log link). Mini-batch solvers: when the epochs' loss stopped falling
        by this share.
    max_iter : int
        Steps at most; for mini-batch solvers see `epochs`.
    fit_intercept : bool
    learning_rate, schedule, power, warmup, momentum, batch_rows, epochs
        Of mini-batch solvers. `warmup` is in steps; `power` is inverse scaling's exponent; a batch of `batch_rows` rows
        takes its share of every lane.
    alpha, beta : float
        Of ftrl (McMahan et al., 2013): each weight's learning rate is alpha / (beta + √n), n the sum of its squared
        gradients. alpha, beta, and with ftrl also l1 and l2, count in gradients *summed* over a mini-batch's rows, as
        in the paper (its batches have one row), so that they mean the same for any `batch_rows`: l1 is what the sum of
        a weight's gradients so far must pass for the weight not to be 0. Against a mean of losses that is a penalty of
        l1 / (rows seen so far), which fades as the training goes on.
    """

    l2: float | None = Field(default=None, ge=0)
    l1: float | None = Field(default=None, ge=0)
    C: float | None = Field(default=None, gt=0)
    l1_ratio: float = Field(default=0.0, ge=0, le=1)
    solver: Solver = "auto"
    tol: float = Field(default=1e-6, ge=0)
    max_iter: int = Field(default=500, ge=1)
    fit_intercept: bool = True
    learning_rate: float | None = Field(default=None, gt=0)
    schedule: Schedule = "cosine"
    power: float = Field(default=0.5, gt=0)
    warmup: int = Field(default=0, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    batch_rows: int = Field(default=4096, ge=1)
    epochs: int = Field(default=20, ge=1)
    alpha: float = Field(default=0.1, gt=0)
    beta: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        if self.C is not None and (self.l2 is not None or self.l1 is not None):
            raise ValueError("C says l2 and l1 in another way; give either C (with l1_ratio), or l2 and l1")
        if self.l1_ratio and self.C is None:
            raise ValueError("l1_ratio shares out C; give C too, or say l1 and l2 themselves")
        if self.solver == "lbfgs" and (self.l1 or self.l1_ratio):
            raise ValueError("lbfgs needs a smooth objective; use solver: auto, owlqn or newton with l1")
        if self.solver not in MINI_BATCH + SERVED:
            said = [name for name in _MINI_BATCH_ONLY if name in self.model_fields_set]
            if said:
                raise ValueError(
                    f"{', '.join(said)} belong to mini-batches; use solver: sgd, momentum or adam with them"
                )
        elif "max_iter" in self.model_fields_set:
            raise ValueError(f"max_iter is not for solver: {self.solver}, which goes through epochs; set epochs")
        _refuse_others_words(self)
        return self


_NOT_WITH = {
    "ftrl": ("C", "l1_ratio", "learning_rate", "schedule", "power", "warmup", "momentum"),
    "adagrad": ("l1", "l1_ratio", "schedule", "power", "warmup", "momentum"),
}


def _refuse_others_words(params: LinearParams) -> None:
    """Refuse what belongs to other rules than a parameter server's, and theirs with others."""
    said = [name for name in _NOT_WITH.get(params.solver, ()) if name in params.model_fields_set]
    if said:
        words = "alpha, beta, l1 and l2" if params.solver == "ftrl" else "learning_rate, l2 or C; l1 with ftrl"
        raise ValueError(f"{', '.join(said)} can't be used with solver: {params.solver}; it knows {words}")
    said = [name for name in ("alpha", "beta") if name in params.model_fields_set]
    if said and params.solver != "ftrl":
        raise ValueError(f"{', '.join(said)} belong to solver: ftrl, and solver is {params.solver}")


ValueLoss = Literal["squared", "huber", "poisson", "gamma", "tweedie", "quantile"]
_BELONGS = {"epsilon": "huber", "quantile": "quantile", "tweedie_power": "tweedie"}


class RegressionParams(LinearParams):
    """`params:` of ``linear_regression``: those of `LinearParams`, and the loss.

    Parameters
    ----------
    loss : {"squared", "huber", "poisson", "gamma", "tweedie", "quantile"}
        squared: half the squared error (the mean of the label). huber: the same up to `epsilon`, and linear beyond, so
        that outliers pull with a bounded force. quantile: the pinball loss (a quantile of the label; its median by
        default). poisson, gamma, tweedie: half the deviance of counts, positive amounts, amounts that are often 0;
        they predict e^z in the label's units and refuse labels that they can't take. One weight of a row is one weight
        of its loss: with an exposure give the rate as label and the exposure as `sample_weight`.
    epsilon : float
        Of huber, in standard deviations of the label over the training rows. (scikit-learn's `HuberRegressor` counts in
        deviations of the residuals, which it estimates as `scale_`: ours = theirs · scale_ / deviation of the label,
        with l2 = alpha · scale_ / rows.)
    quantile : float
        Of quantile, between 0 and 1.
    tweedie_power : float
        Of tweedie, between 1 (poisson) and 2 (gamma): the variance grows as the mean to this power.
    """

    loss: ValueLoss = "squared"
    epsilon: float = Field(default=1.35, gt=0)
    quantile: float = Field(default=0.5, gt=0, lt=1)
    tweedie_power: float = 1.5

    @model_validator(mode="after")
    def _refuse_misplaced(self) -> Self:
        for name, loss in _BELONGS.items():
            if name in self.model_fields_set and self.loss != loss:
                raise ValueError(f"{name} belongs to loss: {loss}, and loss is {self.loss}")
        if not 1 < self.tweedie_power < 2:
            raise ValueError("tweedie_power lies between 1 and 2; for 1 use loss: poisson, for 2 loss: gamma")
        return self


class SvmParams(LinearParams):
    """`params:` of ``linear_svm``: those of `LinearParams`, and the loss.

    Several classes are learned one against the rest. Scores rank and decide, but are no probabilities until
    `evaluate.calibrate` makes them so. Unlike `LinearSVC` the intercept is not penalised.

    Parameters
    ----------
    loss : {"squared_hinge", "hinge"}
        max(0, 1 - t·z)² or max(0, 1 - t·z), t = ±1. The kink of hinge (and of the regression's quantile) is smoothed
        ever less, until the mean loss is right to 1e-6 (in margins, or in deviations of the label; see
        `pipelines.training.smoothing`); mini-batch solvers take a subgradient.
    """

    loss: Literal["squared_hinge", "hinge"] = "squared_hinge"


PARAMS: dict[str, type[LinearParams]] = {
    "logistic_regression": LinearParams,
    "linear_regression": RegressionParams,
    "linear_svm": SvmParams,
}
"""By the estimator's name."""


def params_of(config: TrainConfig) -> LinearParams:
    """Read and check the parameters. Raises ``pydantic.ValidationError``."""
    said = config.params
    if config.strategy.name == "parameter_server" and said.get("solver", "auto") == "auto":
        said = {**said, "solver": "ftrl"}
    return PARAMS[config.estimator].model_validate(said)
