"""A model of few weights among many features predicts what the same weights predict in full."""

from __future__ import annotations

import io

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError
from pipelines.model.linear import LinearPredictor
from pipelines.model.predictors import load_predictor
from pipelines.model.sparse_linear import SparseLinearPredictor

FEATURES, ROWS = 500, 9_000  # more rows than are scored at once


@pytest.fixture(params=[1, 3])
def pair(request: pytest.FixtureRequest) -> tuple[SparseLinearPredictor, LinearPredictor]:
    outputs: int = request.param
    rng = np.random.default_rng(0)
    keys = np.sort(rng.choice(FEATURES, 40, replace=False)).astype(np.int32)
    values = rng.normal(size=(40, outputs)).astype(np.float32)
    coef = np.zeros((outputs, FEATURES))
    coef[:, keys] = values.T
    intercept, link = np.linspace(-0.25, 0.5, outputs), "logistic" if outputs == 1 else "softmax"
    return (
        SparseLinearPredictor(keys, values[:, 0] if outputs == 1 else values, intercept, link, FEATURES),
        LinearPredictor(coef, intercept, link),
    )


def rows(seed: int = 1) -> csr_matrix:
    return csr_matrix(random_array((ROWS, FEATURES), density=0.02, rng=np.random.default_rng(seed), dtype=np.float32))


def test_its_scores_are_the_full_models(pair: tuple[SparseLinearPredictor, LinearPredictor]) -> None:
    sparse, full = pair
    X = rows()
    # The same terms in the same order; those of a weight of 0 add nothing: equal to the bit.
    np.testing.assert_array_equal(sparse.scores(X), full.scores(X))
    np.testing.assert_array_equal(sparse.scores(X[:50].toarray()), full.scores(X[:50].toarray()))


def test_a_row_scores_alone_as_among_others(pair: tuple[SparseLinearPredictor, LinearPredictor]) -> None:
    X = rows()
    together = pair[0].scores(X)
    np.testing.assert_array_equal([pair[0].scores(X[row])[0] for row in range(0, ROWS, 997)], together[::997])


def test_a_model_without_weights_predicts_its_intercept() -> None:
    nothing = SparseLinearPredictor(
        np.empty(0, np.int32), np.empty(0, np.float32), np.array([0.5]), "identity", FEATURES
    )
    np.testing.assert_array_equal(nothing.scores(rows()), np.full(ROWS, 0.5))


def test_it_comes_back_from_its_files(pair: tuple[SparseLinearPredictor, LinearPredictor]) -> None:
    files = pair[0].files()
    outputs = len(pair[0].intercept)
    again = load_predictor("linear", files, n_features=FEATURES, n_outputs=outputs)
    assert again.files() == files
    assert again.describe() == {"link": pair[0].link, "weights": FEATURES * outputs, "nonzero": 40 * outputs}
    assert np.isnan(again.importance()).all()
    X = rows()
    np.testing.assert_array_equal(again.scores(X), pair[0].scores(X))


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "broken",
    [
        {"keys.npy": npy(np.arange(40)[::-1])},
        {"keys.npy": npy(np.arange(40) + FEATURES - 39)},
        {"keys.npy": npy(np.arange(39))},
        {"values.npy": b"nonsense"},
        {"intercept.npy": npy(np.zeros(2))},
        {"values.npy": npy(np.zeros((40, 2), np.float32))},
        {"linear.json": canonical({"link": "unknown"})},
    ],
)
def test_damaged_files_are_refused(
    pair: tuple[SparseLinearPredictor, LinearPredictor], broken: dict[str, bytes]
) -> None:
    with pytest.raises(CorruptArtifactError):
        load_predictor("linear", pair[0].files() | broken, n_features=FEATURES, n_outputs=len(pair[0].intercept))
