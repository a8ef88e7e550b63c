"""Are foreign estimators loaded only as recorded, and scored as the target has its classes?"""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.svm import LinearSVC
from skops import io as skops_io

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError, UserCodeError
from pipelines.model.foreign import SkopsPredictor
from pipelines.model.predictors import load_predictor


def test_a_type_that_was_not_recorded_is_refused(make):
    model = make.skops("binary", HistGradientBoostingClassifier(max_iter=3))
    files = model.predictor.files()
    facts = json.loads(files["foreign.json"])
    assert facts["trusted"], "this estimator holds types that skops does not trust by itself"
    files["foreign.json"] = canonical(facts | {"trusted": []})
    with pytest.raises(CorruptArtifactError, match=r"not recorded.*HistGradientBoosting|not recorded.*TreePredictor"):
        load_predictor("skops", files, n_features=6, n_outputs=1)


def test_an_exchanged_file_with_another_type_is_refused_before_it_is_built(make):
    from functools import partial

    files = make.skops().predictor.files()
    files["estimator.skops"] = skops_io.dumps(partial(print, "harm"))
    with pytest.raises(CorruptArtifactError, match="not recorded"):
        load_predictor("skops", files, n_features=6, n_outputs=1)


def test_probabilities_are_the_estimators_own(make):
    model, table = make.skops(), make.rows(100)
    expected = model.predictor.estimator.predict_proba(model.features.transform(table))[:, 1]
    np.testing.assert_array_equal(model.scores(table), expected)
    assert model.probabilistic


def test_a_regressor_gives_its_values(make):
    model, table = make.skops("regression", Ridge()), make.rows(100)
    expected = model.predictor.estimator.predict(model.features.transform(table))
    np.testing.assert_array_equal(model.scores(table), expected)


def test_a_decision_function_is_squashed_so_that_half_is_its_zero(make):
    model, table = make.skops("binary", LinearSVC()), make.rows(100)
    margins = model.predictor.estimator.decision_function(model.features.transform(table))
    np.testing.assert_array_equal(model.scores(table), expit(margins.astype(np.float64)))
    assert model.predict(table)["prediction"].to_pylist() == (margins >= 0).tolist()
    assert not model.probabilistic


def test_decision_functions_of_several_classes_keep_their_order(make):
    model, table = make.skops("multiclass", SGDClassifier(random_state=0)), make.rows(100)
    margins = model.predictor.estimator.decision_function(model.features.transform(table))
    np.testing.assert_allclose(model.scores(table), softmax(margins.astype(np.float64), axis=1), rtol=1e-13)


def test_a_class_that_the_sample_lacked_has_probability_zero(make):
    random = np.random.default_rng(0)
    X, y = random.normal(size=(100, 4)), random.choice([0.0, 2.0], 100)
    stored = skops_io.dumps(LogisticRegression().fit(X, y))
    predictor = SkopsPredictor(stored, (), "sklearn.linear_model.LogisticRegression", 4, 3)
    scores = predictor.scores(X.astype(np.float32))
    assert scores.shape == (100, 3)
    assert (scores[:, 1] == 0).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1)


def test_an_estimator_that_raises_is_the_users_error_with_its_cause(make):
    model = make.skops()
    with pytest.raises(UserCodeError, match=r"LogisticRegression: the estimator raised ValueError.*NaN") as caught:
        model.scores_of_matrix(np.full((2, 6), np.nan, np.float32))
    assert isinstance(caught.value.__cause__, ValueError)


def test_importance_is_the_estimators_own_or_none(make):
    assert make.skops().importance()
    assert make.skops("binary", HistGradientBoostingClassifier(max_iter=3)).importance() == ()
