"""Does a model come back from its files as it was, and do damaged files say so?"""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError, MutiraoError, NotFoundError, UsageError
from pipelines.model import Calibrator, IsotonicCurve, Model, SigmoidCurve
from pipelines.model.predictors import load_predictor


def test_a_model_comes_back_with_the_same_bytes_and_predictions(model, make):
    again = Model.from_files(model.files())
    assert again.files() == model.files()
    assert again.digest == model.digest
    table = make.rows(100)
    np.testing.assert_array_equal(again.scores(table), model.scores(table))


def test_calibration_and_threshold_travel_with_the_model(models, make):
    model = models["xgboost binary"]
    changed = model.with_calibration(Calibrator((SigmoidCurve(1.7, -0.2),))).with_threshold(0.3)
    again = Model.from_files(changed.files())
    assert (again.calibrator, again.threshold) == (changed.calibrator, 0.3)
    assert again.digest == changed.digest != model.digest
    assert again.predict(make.rows(50)).equals(changed.predict(make.rows(50)))


def test_a_curve_per_class_travels_with_the_model(models):
    curve = IsotonicCurve((0.1, 0.5, 0.9), (0.0, 0.4, 1.0))
    changed = models["linear multiclass"].with_calibration(Calibrator((curve, curve, curve)))
    assert Model.from_files(changed.files()).calibrator == changed.calibrator


def test_no_file_is_a_pickle(model):
    for name, data in model.files().items():
        assert not data.startswith(b"\x80"), name
        assert name.endswith((".json", ".arrow", ".npy", ".ubj", ".skops")), name


def test_models_travel_between_processes_by_their_files(model, make):
    again = pickle.loads(pickle.dumps(model))
    assert again.digest == model.digest


def test_every_missing_file_is_an_error_that_names_it(model):
    files = model.files()
    optional = {"predictor/std.npy"}
    for name in files.keys() - optional:
        with pytest.raises(MutiraoError, match=name.rsplit("/", 1)[-1].split(".", 1)[0]):
            Model.from_files({key: data for key, data in files.items() if key != name})


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 40])
def test_every_damaged_file_is_an_error(model, damage):
    files = model.files()
    for name in files:
        with pytest.raises(MutiraoError):
            Model.from_files(files | {name: damage(files[name])})


def test_a_model_of_a_newer_release_is_refused(model):
    files = model.files()
    head = json.loads(files["model.json"]) | {"schema": 99}
    with pytest.raises(UsageError, match="newer version"):
        Model.from_files(files | {"model.json": canonical(head)})


def test_an_unknown_kind_is_named_with_those_there_are(models):
    files = models["linear binary"].files()
    head = json.loads(files["model.json"]) | {"kind": "liner"}
    with pytest.raises(NotFoundError, match="Did you mean linear"):
        Model.from_files(files | {"model.json": canonical(head)})


def test_weights_of_another_shape_are_refused(make):
    files = make.linear().predictor.files()
    with pytest.raises(CorruptArtifactError, match=r"coef.npy.*expected \(1, 5\); found \(1, 6\)"):
        load_predictor("linear", files, n_features=5, n_outputs=1)


def test_a_booster_for_other_features_or_classes_is_refused(make):
    files = make.xgboost().predictor.files()
    with pytest.raises(CorruptArtifactError, match="expected 3 features, 3 outputs; found 3 features, 1 outputs"):
        load_predictor("xgboost", files, n_features=3, n_outputs=3)


def test_arrays_with_objects_are_refused(make):
    import io

    files = make.linear().predictor.files()
    buffer = io.BytesIO()
    np.save(buffer, np.array([[{"a": 1}] * 6]), allow_pickle=True)
    with pytest.raises(CorruptArtifactError, match=r"coef\.npy"):
        load_predictor("linear", files | {"coef.npy": buffer.getvalue()}, n_features=6, n_outputs=1)
