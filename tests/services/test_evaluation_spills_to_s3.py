"""Scratch files of an evaluation may lie on S3: ordered scores come back exactly, and nothing stays."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from pipelines.evaluation import external
from pipelines.evaluation.groups import group_rows
from pipelines.evaluation.ranks import rank
from pipelines.evaluation.scratch import scratch_folder
from pipelines.evaluation.spill import RunWriter, Stream
from pipelines.storage import open_store

pytestmark = pytest.mark.slow


def test_auc_is_exact_over_scratch_on_s3(s3_url, monkeypatch):
    monkeypatch.setattr(external, "BUDGET", 20_000)
    rng = np.random.default_rng(5)
    n = 100_000
    scores = rng.random(n)
    positive = rng.random(n) < scores
    store = open_store(s3_url)
    store.create("mutirao-evaluation-killed/old.runs", b"what a killed evaluation left")
    store.create("mine.txt", b"keep")
    found = {}
    with scratch_folder(s3_url) as folder:
        runs = []
        for start in range(0, n, 10_000):
            rows = slice(start, start + 10_000)
            with RunWriter(folder) as writer:
                small = group_rows(scores[rows][:50], positive[rows][:50], None)
                whole = group_rows(scores[rows], positive[rows], None)
                runs.append(writer.write([(Stream("test"), whole), (Stream("test", "carrier", "AA"), small)]))
        for stream, groups in external.ordered_streams(folder, runs):
            found[stream] = rank(groups)
    assert found[Stream("test")].auc() == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    expected = average_precision_score(positive, scores)
    assert found[Stream("test")].average_precision() == pytest.approx(expected, abs=1e-12)
    assert len(found) == 2
    assert [info.key for info in store.list()] == ["mine.txt"]
