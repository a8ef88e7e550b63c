"""Products with some rows of a sparse matrix are those of the dense rows, also where rows are empty."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from pipelines.training.compressed import Compressed

FEATURES = 6
ROW = st.one_of(st.just([0] * FEATURES), st.lists(st.integers(-2, 2), min_size=FEATURES, max_size=FEATURES))


@given(st.lists(ROW, min_size=1, max_size=8), st.data())
def test_products_are_those_of_the_dense_rows(rows: list[list[int]], data: st.DataObject) -> None:
    dense = np.array(rows, np.float32)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    X, part = Compressed(csr_matrix(dense), start, stop), dense[start:stop]
    assert X.rows == stop - start
    weights, factors = np.arange(1.0, FEATURES + 1), np.arange(2.0, stop - start + 2)
    scores, sums = np.full(stop - start, 0.5), np.full(FEATURES, 0.25)
    X.add_product(weights, scores)
    X.add_transposed(factors, sums)
    # Whole numbers and halves: exact.
    np.testing.assert_array_equal(scores, part @ weights + 0.5)
    np.testing.assert_array_equal(sums, factors @ part + 0.25)
    np.testing.assert_array_equal(X.matrix().toarray(), part)
    np.testing.assert_array_equal(X.scaled(factors).toarray(), part * factors[:, None])


def test_columns_may_have_other_numbers() -> None:
    dense = np.array([[0, 3, 0, 5], [0, 0, 0, 0], [0, 0, 0, 7]], np.float32)
    matrix = csr_matrix(dense)
    X = Compressed(matrix, columns=(matrix.indices // 2).astype(np.int32), features=2)
    scores = np.zeros(3)
    X.add_product(np.array([1.0, 10.0]), scores)
    assert scores.tolist() == [53.0, 0.0, 70.0]
