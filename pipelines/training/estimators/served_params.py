"""What goes with a parameter server, and which rule do its servers follow?"""

from __future__ import annotations

from pipelines.errors import UsageError
from pipelines.training.config import ParameterServerConfig
from pipelines.training.estimators.linear_params import SERVED, LinearParams
from pipelines.training.estimators.linear_setting import Setting
from pipelines.training.strategies.parameter_server.rules import Adagrad, AnyRule, Ftrl, Sgd

MOST_BY_DEFAULT = 8
_NOT_FOR_SGD = ("l1", "l1_ratio", "warmup", "momentum")


def refuse_parameters(params: LinearParams) -> None:
    """Raise ``ValueError`` for parameters that a parameter server can't follow."""
    if params.solver not in SERVED:
        raise ValueError(
            f"strategy: parameter_server has the solvers {', '.join(SERVED)}; use one of them, or solver: "
            f"{params.solver} with strategy: synchronous"
        )
    if params.solver == "sgd":
        said = [name for name in _NOT_FOR_SGD if name in params.model_fields_set]
        if said:
            raise ValueError(
                f"{', '.join(said)} can't be used with solver: sgd on a parameter server; use solver: ftrl for l1, or "
                "strategy: synchronous"
            )
        if params.schedule in ("linear", "cosine") and "schedule" in params.model_fields_set:
            raise ValueError(
                f"schedule: {params.schedule} needs to know the last step, and a parameter server's updates are not "
                "counted out; use constant or inverse_scaling"
            )


def count_servers(strategy: ParameterServerConfig, ranks: int) -> int:
    """Say how many servers there are for so many ranks.

    Raises
    ------
    UsageError
        More servers than ranks were asked for, with copies: a rank that is lost would take both copies along.
    """
    if strategy.servers is None:
        return min(ranks, MOST_BY_DEFAULT)
    if strategy.replicate and strategy.servers > ranks:
        raise UsageError(
            "a server and its copy would share a worker, and be lost together",
            on="train.strategy.servers",
            expected=f"at most {ranks}, one for each rank",
            found=str(strategy.servers),
            remedy="Use fewer servers, more workers, or replicate: false.",
        )
    return strategy.servers


def rule_of(params: LinearParams) -> AnyRule:
    """Return the servers' rule.

    Gradients come as means over a batch. FTRL's parameters count in sums over its rows: with G = B·g and N = B²·n,
    α·G / (β + √N) is α·g / (β/B + √n), and |Z| <= l1 is |z| <= l1/B; so β, l1 and l2 are divided by B.
    """
    rows = params.batch_rows
    if params.solver == "ftrl":
        return Ftrl(params.alpha, params.beta / rows, l1=(params.l1 or 0.0) / rows, l2=(params.l2 or 0.0) / rows)
    rate = params.learning_rate or 0.1
    if params.solver == "adagrad":
        return Adagrad(rate)
    return Sgd(rate, params.power if params.schedule == "inverse_scaling" else 0.0)


def strength(params: LinearParams, setting: Setting) -> float:
    """Return the l2 that is in the gradients: FTRL has its own."""
    return 0.0 if params.solver == "ftrl" else setting.l2
