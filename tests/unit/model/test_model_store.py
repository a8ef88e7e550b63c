"""Is a stored model read back verified, whole, and never mixed with another?"""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.errors import CorruptArtifactError, ObjectNotFoundError
from pipelines.model import load_model, save_model
from pipelines.model.store import _cache
from pipelines.storage import open_store


@pytest.fixture(autouse=True)
def _empty_cache():
    _cache._models.clear()


def test_a_stored_model_predicts_the_same(model, make, tmp_path):
    digest = save_model(model, open_store(str(tmp_path)), "runs/7/model")
    assert digest == model.digest
    again = load_model(str(tmp_path), "runs/7/model", digest)
    np.testing.assert_array_equal(again.scores(make.rows(50)), model.scores(make.rows(50)))


def test_a_process_keeps_models_by_digest(models, tmp_path):
    store = open_store(str(tmp_path))
    digest = save_model(models["linear binary"], store, "a")
    save_model(models["linear binary"], store, "b")
    assert load_model(str(tmp_path), "a") is load_model(str(tmp_path), "b", digest)


def test_saving_again_is_fine_and_saving_another_replaces(models, tmp_path):
    store = open_store(str(tmp_path))
    first = save_model(models["linear binary"], store, "m")
    assert save_model(models["linear binary"], store, "m") == first
    second = save_model(models["xgboost binary"], store, "m")
    assert load_model(str(tmp_path), "m").digest == second != first


def test_another_model_than_the_one_recorded_is_refused(models, tmp_path):
    store = open_store(str(tmp_path))
    first = save_model(models["linear binary"], store, "m")
    save_model(models["xgboost binary"], store, "m")
    with pytest.raises(CorruptArtifactError, match="not the one that was recorded"):
        load_model(str(tmp_path), "m", first)


def test_every_changed_byte_is_found(model, tmp_path):
    store = open_store(str(tmp_path))
    save_model(model, store, "m")
    for info in list(store.list("m/files")):
        data = store.get(info.key)
        store.replace(info.key, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CorruptArtifactError, match=info.key.rsplit("/", 1)[1][:12]):
            load_model(str(tmp_path), "m")
        store.replace(info.key, data)
    assert load_model(str(tmp_path), "m").digest == model.digest


def test_a_damaged_manifest_is_found(models, tmp_path):
    store = open_store(str(tmp_path))
    save_model(models["linear binary"], store, "m")
    store.replace("m/manifest.json", b"{}")
    with pytest.raises(CorruptArtifactError, match=r"manifest\.json"):
        load_model(str(tmp_path), "m")


def test_no_model_is_not_found(tmp_path):
    with pytest.raises(ObjectNotFoundError):
        load_model(str(tmp_path), "nowhere")
