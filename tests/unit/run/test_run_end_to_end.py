"""One spec, from data to a published version, on a real cluster with a real detached driver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.data.dataset import open_dataset
from pipelines.errors import RunFailedError, SpecError
from pipelines.registry import Registry
from pipelines.run import Pipeline, attach, list_runs

pytestmark = pytest.mark.slow

MakeSpec = Callable[..., dict[str, Any]]
LIMIT_S = 150


def test_the_second_run_computes_nothing_and_its_twin_is_not_better(make_spec: MakeSpec, tmp_path: Path) -> None:
    first = Pipeline(make_spec()).run(timeout_s=LIMIT_S)
    assert first.version == "small/1"
    assert [stage.status for stage in first.stages] == ["done"] * 5
    plan = Pipeline(make_spec()).plan()
    assert [stage.cached for stage in plan.stages] == [True, True, True, True, False]
    second = Pipeline(make_spec()).run(timeout_s=LIMIT_S)
    assert [stage.status for stage in second.stages] == ["cached"] * 4 + ["done"]
    assert second.metrics == first.metrics
    assert second.version == "small/2"
    assert any("not better than small/1" in notice for notice in second.notices)
    registry = Registry.open(str(tmp_path / "registry"))
    assert registry.get("small@champion").version == 1
    assert [entry.action for entry in registry.history("small")] == ["refuse", "promote"]
    assert {record.run_id for record in list_runs(str(tmp_path / "runs"))} == {first.run_id, second.run_id}


def test_a_changed_parameter_recomputes_what_hangs_on_it(make_spec: MakeSpec) -> None:
    Pipeline(make_spec()).run(timeout_s=LIMIT_S)
    changed = make_spec(train={"estimator": "logistic_regression", "params": {"l2": 1e-2}})
    stages = {stage.name: stage for stage in Pipeline(changed).plan().stages}
    assert (stages["split"].cached, stages["features"].cached, stages["train"].cached) == (True, True, False)
    assert stages["train"].why == "parameters.params.l2: 0.0001 → 0.01"
    assert stages["evaluate"].why == "input train changed"


@pytest.mark.timeout(600)
def test_one_two_and_four_workers_give_the_same_metrics(make_spec: MakeSpec, tmp_path: Path) -> None:
    records = {}
    for workers in (1, 2, 4):
        spec = make_spec(
            cluster={"workers": workers, "worker": {"memory": "1 GiB"}}, runs=str(tmp_path / f"runs{workers}")
        )
        records[workers] = Pipeline(spec).run(timeout_s=LIMIT_S)
    rows = [record.stage("features").summary["rows"] for record in records.values()]  # type: ignore[union-attr]
    assert rows[0] == rows[1] == rows[2]
    for workers in (2, 4):
        for part in ("validation", "test"):
            assert records[workers].metrics[part] == pytest.approx(records[1].metrics[part], abs=1e-6)


def test_a_training_that_stops_short_is_told(make_spec: MakeSpec) -> None:
    hasty = {"estimator": "logistic_regression", "params": {"l2": 1e-4, "solver": "lbfgs", "max_iter": 2}}
    record = Pipeline(make_spec(train=hasty)).run(timeout_s=LIMIT_S)
    assert any("max_iter" in notice and "before it met its tolerance" in notice for notice in record.notices)


def test_an_unmet_gate_publishes_nothing(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(evaluate={"metrics": ["auc"], "require": {"auc": ">= 0.99"}})
    with pytest.raises(RunFailedError, match=r"auc on test is 0\.\d+, required >= 0\.99") as caught:
        Pipeline(spec).run(timeout_s=LIMIT_S)
    assert caught.value.exit_code == 7
    assert Registry.open(str(tmp_path / "registry")).models() == ()
    [record] = list_runs(str(tmp_path / "runs"))
    assert record.status == "gate_not_met"


def test_the_users_own_code_runs_as_a_stage_and_can_stop_the_publication(make_spec: MakeSpec, tmp_path: Path) -> None:
    module = tmp_path / "my_checks.py"
    module.write_text(
        "def look(context):\n"
        "    count = sum(context.client.gather(context.client.map(double, [1, 2])))\n"
        "    return {'auc': context.evaluation.value('auc', 'test'), 'count': count}\n"
        "def double(x):\n    return 2 * x\n"
        "def judge(context):\n"
        "    if context.results['look']['auc'] < context.params['limit']:\n"
        "        raise ValueError('too weak for us')\n"
    )
    stages = [
        {"name": "judge", "call": "my_checks:judge", "needs": ["look"], "params": {"limit": 0.1}},
        {"name": "look", "call": "my_checks:look", "params": {"limit": 7}},
    ]
    record = Pipeline(make_spec(stages=stages, code=[str(module)])).run(timeout_s=LIMIT_S)
    look = record.stage("look")
    assert look is not None
    assert look.summary["result"]["count"] == 6
    assert look.summary["result"]["auc"] == record.metrics["test"]["auc"]
    stages[0]["params"] = {"limit": 1.0}
    with pytest.raises(RunFailedError, match="ValueError: too weak for us") as caught:
        Pipeline(make_spec(stages=stages, code=[str(module)])).run(timeout_s=LIMIT_S)
    assert caught.value.exit_code == 4
    assert len(Registry.open(str(tmp_path / "registry")).versions("small")) == 1


def test_a_dataset_that_changes_between_plan_and_run_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    from pipelines.plan import compile_plan
    from pipelines.run.folder import RunFolder
    from pipelines.run.submission import submit_attempt
    from pipelines.spec import find_places, load_spec

    data = tmp_path / "flights"
    shutil.copytree(make_spec()["data"]["source"], data)
    spec = load_spec(make_spec(data={"source": str(data), "derive": {"late": "arr_delay > 15"}}))
    folder = RunFolder.create(spec.runs or "", compile_plan(spec, find_places(spec.runs, spec.registry)), None)
    shutil.rmtree(data / "month=2")
    submit_attempt(folder)
    record = attach(folder.run_id, spec.runs).wait(LIMIT_S)
    assert record.exit_code == 4
    assert record.error is not None
    assert record.error["type"] == "DatasetChangedError"
    assert "month=2" in record.error["message"]


def test_columns_that_do_not_exist_are_all_named_before_anything_runs(make_spec: MakeSpec) -> None:
    spec = make_spec(
        publish=None,
        features=[["distanse", "carrier"]],
        evaluate={"metrics": ["rmse"], "segments": ["orign"]},
        label={"column": "late", "kind": "binary"},
    )
    with pytest.raises(SpecError) as caught:
        Pipeline(spec).plan()
    faults = {fault.path: str(fault) for fault in caught.value.faults}
    assert "distance" in faults["features[0].columns"]
    assert "origin" in faults["evaluate.segments[0]"]
    assert "not for a binary label" in faults["evaluate.metrics[0]"]


def test_expressions_and_columns_that_can_not_be_are_told_at_once(make_spec: MakeSpec) -> None:
    data = make_spec()["data"] | {
        "filter": "mnth == 1",
        "derive": {"late": "arr_delay > 15", "odd": "carrier > 3", "odder": "odd + 1"},
    }
    with pytest.raises(SpecError) as caught:
        Pipeline(make_spec(data=data, features=[["distanse", "odd"]])).plan()
    faults = {fault.path: str(fault) for fault in caught.value.faults}
    assert set(faults) == {"data.filter", "data.derive.odd", "features[0].columns"}
    assert "month" in faults["data.filter"]
    assert "'carrier > 3'" in faults["data.derive.odd"]
    assert "distance" in faults["features[0].columns"]


def test_the_plan_shows_what_was_pruned_and_goes_through_json(make_spec: MakeSpec) -> None:
    from pipelines.codec import dump, load
    from pipelines.plan import Plan

    plan = Pipeline(make_spec()).plan()
    assert (plan.data.files, plan.data.files_before) == (1, 12)
    assert plan.data.rows == 27_004
    assert plan.shards.bytes_max - plan.shards.bytes_min <= plan.shards.largest_piece_bytes
    assert json.loads(dump(plan))["pipeline"] == "small"
    assert dump(load(Plan, dump(plan))) == dump(plan)


def test_sample_rows_of_the_dataset_are_those_of_the_source() -> None:
    dataset = open_dataset(str(Path(__file__).parents[3] / "data_samples" / "flights"))
    assert (dataset.rows, dataset.files.num_rows, dataset.row_groups.num_rows) == (336_776, 12, 48)
