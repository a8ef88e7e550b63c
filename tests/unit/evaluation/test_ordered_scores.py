"""Scores that were spilled in pieces come back in order, ties together, and are ranked exactly in bounded memory."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, roc_auc_score

from pipelines.errors import StorageError
from pipelines.evaluation import external, spill
from pipelines.evaluation.groups import Groups, as_groups, combine, compress, group_rows, keys_of, scores_of
from pipelines.evaluation.ranks import rank
from pipelines.evaluation.scratch import scratch_folder
from pipelines.evaluation.spill import RunReader, RunWriter, Stream
from pipelines.storage import open_filesystem

ANY = st.floats(allow_nan=False, allow_infinity=False)


@given(hnp.arrays(np.float64, st.integers(0, 30), elements=ANY))
def test_keys_descend_with_the_scores_and_give_them_back(scores):
    keys = keys_of(scores)
    np.testing.assert_array_equal(scores_of(keys), scores)
    order = np.argsort(keys)
    assert (np.diff(scores[order]) <= 0).all()
    assert keys_of(np.array([0.0])) == keys_of(np.array([-0.0]))


def spilled(folder, scores, positive, weight, block):
    runs = []
    with RunWriter(folder) as writer:
        for start in range(0, len(scores), block):
            rows = slice(start, start + block)
            records = group_rows(scores[rows], positive[rows], None if weight is None else weight[rows])
            runs.append(writer.write([(Stream("test"), records)]))
    return runs


def read_all(folder, runs):
    return {stream: list(groups) for stream, groups in external.ordered_streams(folder, runs)}


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    url = str(tmp_path) if request.param == "local" else f"memory://spills-{tmp_path.name}"
    with scratch_folder(url) as made:
        yield made


def expected_groups(scores, positive, weight):
    weight = np.ones(len(scores)) if weight is None else weight
    distinct = np.unique(scores)[::-1]
    sums = [[weight[(scores == s) & (positive == side)].sum() for s in distinct] for side in (True, False)]
    return distinct, *sums


@pytest.mark.parametrize("fan_in", [1024, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["float64", "float32", "few", "all equal", "negative"])
def test_groups_come_back_in_order_with_ties_together(folder, monkeypatch, kind, weighted, fan_in):
    monkeypatch.setattr(external, "BUDGET", 150)
    monkeypatch.setattr(external, "FAN_IN", fan_in)
    monkeypatch.setattr(spill, "FENCE", 16)
    rng = np.random.default_rng(len(kind))
    n = 1000
    scores = {
        "float64": rng.random(n),
        "float32": rng.random(n).astype(np.float32).astype(np.float64),
        "few": rng.integers(0, 5, n) / 4,
        "all equal": np.full(n, 0.7),
        "negative": rng.standard_normal(n) * 1e5,
    }[kind]
    positive, weight = rng.random(n) < 0.3, rng.uniform(0.1, 9, n) if weighted else None
    chunks = read_all(folder, spilled(folder, scores, positive, weight, 90))[Stream("test")]
    found = [np.concatenate([getattr(c, name) for c in chunks]) for name in ("scores", "positive", "negative")]
    for ours, theirs in zip(found, expected_groups(scores, positive, weight), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    auc, precision = rank(chunks).auc(), rank(chunks).average_precision()
    assert auc == pytest.approx(roc_auc_score(positive, scores, sample_weight=weight), abs=1e-12)
    assert precision == pytest.approx(average_precision_score(positive, scores, sample_weight=weight), abs=1e-12)


def test_no_range_holds_more_than_its_budget_and_the_grain_of_its_fences(tmp_path, monkeypatch):
    monkeypatch.setattr(external, "BUDGET", 400)
    rng = np.random.default_rng(0)
    with scratch_folder(str(tmp_path)) as folder:
        # Half of the scores crowd into a sliver, as those of a good model of rare events do.
        scores = np.where(rng.random(40_000) < 0.5, rng.random(40_000), 1e-9 * rng.random(40_000))
        runs = spilled(folder, scores, scores > 0.5, None, 5000)
        sizes = [len(chunk) for chunk in read_all(folder, runs)[Stream("test")]]
    assert sum(sizes) == len(np.unique(scores))
    assert max(sizes) <= 400 + 8 * spill.FENCE


def test_many_streams_are_kept_apart(folder, monkeypatch):
    monkeypatch.setattr(external, "BUDGET", 500)
    rng = np.random.default_rng(4)
    streams = [Stream(part, column, value) for part in ("test", "validation") for column, value in
               [("", None), ("c", None), ("c", "a"), ("c", "ä"), ("d", 1), ("d", 2), ("e", True)]]  # fmt: skip
    streams.sort(key=Stream.order)
    sizes = {stream: int(rng.integers(1, 700)) for stream in streams}
    rows = {stream: (rng.random(size), rng.random(size) < 0.5) for stream, size in sizes.items()}
    runs = []
    for third in range(3):  # each in a file of its own; some streams are not in all of them
        with RunWriter(folder) as writer:
            pieces = {s: tuple(x[third::3] for x in rows[s]) for s in streams}
            runs.append(writer.write([(s, group_rows(*pieces[s], None)) for s in streams if len(pieces[s][0])]))
    found = {stream: rank(chunks) for stream, chunks in read_all(folder, runs).items()}
    assert set(found) == set(streams)
    for stream, (scores, positive) in rows.items():
        assert found[stream] == rank([as_groups(*group_rows(scores, positive, None))])


def test_streams_have_one_order_whatever_the_types_of_their_values():
    values = [None, True, 2, 2.5, "a", "ä", "None"]
    order = sorted((Stream("test", "c", value) for value in values), key=Stream.order)
    backwards = order[::-1]
    assert sorted(backwards, key=Stream.order) == order
    assert len({json.dumps(stream.order()) for stream in order}) == len(values)


@given(st.integers(0, 2**31), st.integers(1, 40), st.booleans())
@settings(max_examples=40)
def test_ranks_do_not_depend_on_where_a_stream_is_cut(seed, pieces, weighted):
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(0, 40, 200) / 40, rng.random(200) < 0.4
    whole = as_groups(*group_rows(scores, positive, rng.random(200) + 0.1 if weighted else None))
    cuts = np.array_split(np.arange(len(whole)), pieces)
    found = rank(Groups(whole.scores[c], whole.positive[c], whole.negative[c]) for c in cuts)
    together = rank([whole])
    if weighted:
        assert found.auc() == pytest.approx(together.auc(), abs=1e-14)
    else:
        assert found == together


def test_enormous_ties_do_not_overflow():
    many = 3_000_000_000  # of each kind at each of two scores; pairs pass 2^63
    groups = Groups(np.array([0.9, 0.1]), np.array([many, many]), np.array([many, many]))
    assert rank([groups]).auc() == 0.5
    better = Groups(np.array([0.9, 0.1]), np.array([many, 0]), np.array([0, many]))
    assert rank([better]).auc() == 1.0


def test_undefined_ranks_are_none():
    one = rank([as_groups(*group_rows(np.array([0.1, 0.2]), np.array([True, True]), None))])
    assert one.auc() is None
    assert one.average_precision() == 1.0
    assert rank([]).average_precision() is None


@given(st.integers(2, 300), st.integers(1, 20), st.integers(0, 1000))
def test_compressed_groups_keep_weights_and_order(n, cap, seed):
    rng = np.random.default_rng(seed)
    whole = as_groups(*group_rows(rng.random(n), rng.random(n) < 0.5, None))
    pieces = np.array_split(np.arange(len(whole)), 1 + n // 40)
    stream = [Groups(whole.scores[c], whole.positive[c], whole.negative[c]) for c in pieces]
    chunks = list(compress(stream, cap, float(n)))
    scores = np.concatenate([chunk.scores for chunk in chunks])
    assert (np.diff(scores) < 0).all()
    assert len(scores) <= 2 * cap + len(pieces)
    assert sum(int(chunk.positive.sum()) for chunk in chunks) == int(whole.positive.sum())
    assert sum(int(chunk.negative.sum()) for chunk in chunks) == int(whole.negative.sum())


def test_records_are_as_narrow_as_they_can_be_without_loss(tmp_path):
    rng = np.random.default_rng(1)
    halves = rng.random(3000).astype(np.float32).astype(np.float64)
    cases = {
        "u4 u1": (halves, None),
        "u8 u1": (rng.random(3000), None),
        "u4 u2": (np.repeat(halves[:10], 300), None),
        "u8 f8": (rng.random(3000), rng.random(3000)),
        "u4 f4": (halves, np.full(3000, 0.25)),
    }
    with scratch_folder(str(tmp_path)) as folder:
        for layout, (scores, weight) in cases.items():
            (run,) = spilled(folder, scores, scores > 0.5, weight, 5000)
            assert run.sections[0].layout == layout
            with RunReader(folder) as reader:
                (found,) = reader.neighbours(run, run.sections)
            for ours, theirs in zip(found, group_rows(scores, scores > 0.5, weight), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_scratch_is_removed_whatever_happens(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "mutirao-evaluation-killed").mkdir()  # what a killed evaluation left
    with pytest.raises(KeyboardInterrupt), scratch_folder(str(tmp_path)) as folder:  # noqa: PT012
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(folder.path).name]
        spilled(folder, np.array([0.5]), np.array([True]), None, 1)
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_late_task_leaves_nothing_behind(tmp_path):
    with scratch_folder(str(tmp_path)) as folder:
        pass
    with pytest.raises(StorageError), RunWriter(folder) as writer:
        writer.write([(Stream("test"), group_rows(np.array([0.5]), np.array([True]), None))])
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught, scratch_folder(str(tmp_path / "file" / "below")):
        pass
    assert str(tmp_path) in str(caught.value)


def test_a_shortened_scratch_file_is_found(tmp_path):
    with scratch_folder(str(tmp_path)) as folder:
        (run,) = spilled(folder, np.random.default_rng(0).random(100), np.arange(100) > 50, None, 100)
        Path(run.path).write_bytes(Path(run.path).read_bytes()[:200])
        with pytest.raises(StorageError, match="shorter"):
            read_all(folder, [run])


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_five_million_rows_equal_sklearn(tmp_path, weighted):
    rng = np.random.default_rng(11)
    n = 5_000_000
    scores = rng.beta(0.4, 4, n)
    scores[: n // 4] = scores[: n // 4].round(3)  # ties
    positive = rng.random(n) < scores
    weight = rng.uniform(0.2, 5, n) if weighted else None
    with scratch_folder(str(tmp_path)) as folder:
        runs = spilled(folder, scores, positive, weight, 1 << 18)
        ((_, found),) = [(stream, rank(groups)) for stream, groups in external.ordered_streams(folder, runs)]
    assert found.auc() == pytest.approx(roc_auc_score(positive, scores, sample_weight=weight), abs=1e-9)
    expected = average_precision_score(positive, scores, sample_weight=weight)
    assert found.average_precision() == pytest.approx(expected, abs=1e-9)


def test_opening_the_place_asks_nothing():
    assert open_filesystem("memory://nowhere").path.startswith("nowhere")


def test_combining_nothing_is_nothing():
    empty = np.empty(0, np.uint64)
    assert len(combine(empty, np.empty(0, np.int64), np.empty(0, np.int64))[0]) == 0
