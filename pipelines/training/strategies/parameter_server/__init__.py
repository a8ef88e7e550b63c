"""A parameter server: weights of sparse linear models, sharded over processes; README.md says how."""

from pipelines.training.strategies.parameter_server.arbiter import Arbiter
from pipelines.training.strategies.parameter_server.batch import Objective
from pipelines.training.strategies.parameter_server.client import Client
from pipelines.training.strategies.parameter_server.collect import collect_weights
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.rules import Adagrad, Ftrl, Rule, Sgd
from pipelines.training.strategies.parameter_server.server import serve
from pipelines.training.strategies.parameter_server.worker import train

__all__ = [
    "Adagrad",
    "Arbiter",
    "Client",
    "Ftrl",
    "Layout",
    "Limits",
    "Objective",
    "Rule",
    "Sgd",
    "collect_weights",
    "serve",
    "train",
]
