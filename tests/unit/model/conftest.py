"""Small real models of every kind, on a plan of two numbers and a category."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import xgboost as xgb
from sklearn.linear_model import LogisticRegression
from skops import io as skops_io

from pipelines.codec import canonical, digest
from pipelines.features import FeaturePlan, Target
from pipelines.features.steps import Category, Domain, Input, Number
from pipelines.features.stored import Stored
from pipelines.model import Model
from pipelines.model.predictors import load_predictor

SCHEMA = pa.schema([("distance", pa.float64()), ("delay", pa.int32()), ("carrier", pa.string())])
CARRIERS = ["AA", "B6", "DL", "UA"]


def make_plan(*, layout: str = "one_hot", sparse: bool = False, fill: float | None = 0.0) -> FeaturePlan:
    """Scale two numbers and encode a category."""
    steps = (
        Number(Input("distance"), center=500.0, scale=250.0, fill=None if fill is None else 500.0),
        Number(Input("delay"), center=0.0, scale=10.0, fill=fill),
        Category(Input("carrier"), "carrier", layout),  # type: ignore[arg-type]  # a literal, passed as text
    )
    return FeaturePlan(
        Stored(
            SCHEMA,
            steps,
            {"carrier": pa.array(CARRIERS)},
            sparse=sparse,
            domains={"distance": Domain(0.0, 1000.0), "delay": Domain(-20.0, 20.0), "carrier": Domain()},
        )
    )


def make_target(kind: str = "binary") -> Target:
    """A target of each kind, with labels of another type each."""
    if kind == "binary":
        return Target("late", "binary", "bool", (False, True), (60, 40), "drop")
    if kind == "multiclass":
        return Target("band", "multiclass", "string", ("early", "late", "on time"), (10, 20, 30), "fail")
    return Target("minutes", "regression", "double", (), (), "drop", 1.0, 2.0)


def make_rows(rows: int, seed: int = 0) -> pa.Table:
    """Rows with nulls and an unknown carrier among them."""
    random = np.random.default_rng(seed)
    columns = [
        pa.array(random.uniform(0, 1000, rows), mask=random.random(rows) < 0.1),
        pa.array(random.integers(-20, 20, rows), pa.int32(), mask=random.random(rows) < 0.1),
        pa.array(random.choice([*CARRIERS, "ZZ"], rows), mask=random.random(rows) < 0.1),
    ]
    return pa.table(columns, schema=SCHEMA)


def npy(array: np.ndarray) -> bytes:
    """An array as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array, np.float64))
    return buffer.getvalue()


def linear_model(kind: str = "binary", *, sparse: bool = False, fill: float | None = 0.0) -> Model:
    """A linear model with drawn weights."""
    plan, target = make_plan(sparse=sparse, fill=fill), make_target(kind)
    random = np.random.default_rng(3)
    link = {"binary": "logistic", "multiclass": "softmax", "regression": "identity"}[kind]
    files = {
        "linear.json": canonical({"schema": 1, "link": link}),
        "coef.npy": npy(random.normal(size=(target.n_outputs, len(plan.names)))),
        "intercept.npy": npy(random.normal(size=target.n_outputs)),
        "std.npy": npy(random.uniform(0.5, 2, len(plan.names))),
    }
    predictor = load_predictor("linear", files, n_features=len(plan.names), n_outputs=target.n_outputs)
    return Model(plan, target, predictor)


def trained_labels(table: pa.Table, target: Target) -> np.ndarray:
    """Class codes or values that hang on the columns."""
    signal = np.nan_to_num(table["delay"].to_numpy()) + np.isin(table["carrier"].to_pylist(), ["AA", "DL"]) * 8
    if target.kind == "regression":
        return signal.astype(np.float32)
    return np.digitize(signal, [0.0, 10.0][: max(1, target.n_outputs - 1)]).astype(np.float32)


def xgboost_model(kind: str = "binary", rounds: int = 12) -> Model:
    """Trees that XGBoost grew on native categories."""
    plan, target, table = make_plan(layout="native", fill=None), make_target(kind), make_rows(3000)
    objective = {"binary": "binary:logistic", "multiclass": "multi:softprob", "regression": "reg:squarederror"}[kind]
    words = {"objective": objective, "max_depth": 4, "nthread": 1, "seed": 1}
    if kind == "multiclass":
        words["num_class"] = 3
    matrix = xgb.QuantileDMatrix(
        plan.transform(table), trained_labels(table, target), feature_types=list(plan.types), enable_categorical=True
    )
    model = bytes(xgb.train(words, matrix, rounds).save_raw("ubj"))
    facts = canonical({"schema": 1, "sha256": digest(model), "version": xgb.__version__})
    predictor = load_predictor(
        "xgboost", {"model.ubj": model, "xgboost.json": facts}, n_features=len(plan.names), n_outputs=target.n_outputs
    )
    return Model(plan, target, predictor)


def skops_model(kind: str = "binary", estimator: object | None = None) -> Model:
    """A scikit-learn estimator stored with skops."""
    plan, target, table = make_plan(), make_target(kind), make_rows(2000)
    estimator = LogisticRegression() if estimator is None else estimator
    estimator.fit(plan.transform(table), trained_labels(table, target))  # type: ignore[attr-defined]
    stored = skops_io.dumps(estimator)
    facts = {
        "schema": 1,
        "class": f"{type(estimator).__module__}.{type(estimator).__qualname__}",
        "trusted": skops_io.get_untrusted_types(data=stored),
    }
    predictor = load_predictor(
        "skops",
        {"estimator.skops": stored, "foreign.json": canonical(facts)},
        n_features=len(plan.names),
        n_outputs=target.n_outputs,
    )
    return Model(plan, target, predictor)


MODELS: dict[str, Callable[[], Model]] = {
    "linear binary": linear_model,
    "linear sparse": lambda: linear_model(sparse=True),
    "linear multiclass": lambda: linear_model("multiclass"),
    "linear regression": lambda: linear_model("regression"),
    "xgboost binary": xgboost_model,
    "xgboost multiclass": lambda: xgboost_model("multiclass"),
    "xgboost regression": lambda: xgboost_model("regression"),
    "skops binary": skops_model,
    "skops multiclass": lambda: skops_model("multiclass"),
}


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """Every model, made once."""
    return {name: make() for name, make in MODELS.items()}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, models: dict[str, Model]) -> Model:
    """Each of the models."""
    return models[request.param]


@pytest.fixture(scope="session")
def rows() -> Callable[..., pa.Table]:
    """`make_rows`."""
    return make_rows


class Make:
    """The makers, for tests that want a model of their own."""

    plan = staticmethod(make_plan)
    target = staticmethod(make_target)
    rows = staticmethod(make_rows)
    npy = staticmethod(npy)
    linear = staticmethod(linear_model)
    xgboost = staticmethod(xgboost_model)
    skops = staticmethod(skops_model)


@pytest.fixture(scope="session")
def make() -> type[Make]:
    """Makers of models, plans, targets and rows."""
    return Make
