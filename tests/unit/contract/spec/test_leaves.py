"""The arguments as people write them in DAGs and specs: groups, their short forms, and names that do not
exist."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engines import names_profile, with_profile
from airflow_provider_raydatallm.contract.spec.leaves import ARGUMENTS, LEAVES, expand, unknown_argument
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS
from airflow_provider_raydatallm.contract.spec.tasks import TASK_ARGUMENTS
from airflow_provider_raydatallm.processor.commands.spec_file import load_spec
from airflow_provider_raydatallm.task.arguments import WaitLimits
from tests.support.slice_jobs import changed, slice_job

SPEC = {"slice_key": "k", "input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "{a}"}


@pytest.mark.parametrize(("rerun", "leaves"), [
    ("keep", {}), (None, {}), ("extend", {"on_input_change": "extend"}),
    ("recompute", {"on_config_change": "recompute", "on_input_change": "recompute"}),
    ({"force": True, "on_running": "fail"}, {"force": True, "on_running": "fail"}),
])  # fmt: skip
def test_rerun_has_short_forms_and_parts(rerun: Any, leaves: dict[str, Any]) -> None:
    assert expand("rerun", rerun) == leaves


@pytest.mark.parametrize(("group", "text", "leaf"), [
    ("engine", "vllm", "kind"), ("engine", "m:Mine", "kind"), ("adapter", "/a", "path"),
    ("images", "photo", "column"), ("audio", "call", "column"),
])  # fmt: skip
def test_text_alone_is_a_group_s_main_leaf(group: str, text: str, leaf: str) -> None:
    assert expand(group, text) == {leaf: text}


@pytest.mark.parametrize(("group", "value", "says"), [
    ("source", "csv", "source is 'csv': give a dict with any of format, column"),
    ("limits", 5, "limits is 5: give a dict with any of queue"),
    ("rerun", "always", "or one of 'keep', 'recompute', 'extend'"),
    ("engine", ["vllm"], "or the name of an engine"),
    ("limits", {"stal": 1}, "limits has no 'stal': did you mean 'stall'?"),
    ("engine", {"max_model_len": 64}, "arguments stand in engine.kwargs"),
])  # fmt: skip
def test_value_that_is_no_form_of_a_group_is_refused(group: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        expand(group, value)


@pytest.mark.parametrize(("path", "nearest"), [
    ("engine.acelerator", "'accelerator'"), ("quality.max_quarantin", "'max_quarantine'"),
    ("engine.stall", "limits.stall"), ("regx", "regex"), ("accelerator", "engine="),
    ("engine_kwargs", "engine={'kwargs': ...}"), ("stall_timeout", "limits.stall"),
])  # fmt: skip
def test_name_that_does_not_exist_is_answered_with_the_nearest(path: str, nearest: str) -> None:
    assert nearest in unknown_argument(path)


def test_each_leaf_stands_in_one_group_and_each_argument_alone() -> None:
    assert {leaf.group for leaf in LEAVES.values()} == {None, *GROUPS}
    assert len(set(ARGUMENTS)) == len(ARGUMENTS)
    assert set(ARGUMENTS) >= TASK_ARGUMENTS


def test_spec_in_a_file_has_groups(tmp_path: Path) -> None:
    groups = {"engine": {"workers": [1, 4], "idle_timeout": "never"}, "limits": {"stall": "1h30m"}}
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**SPEC, **groups}))
    job = load_spec(str(file))
    assert (job.engine.model_dump()["workers"], job.limits.stall) == ((1, 4), 5400)
    assert job.engine.model_dump()["idle_timeout"] is None
    file.write_text(job.model_dump_json())  # as the operator sends it
    assert load_spec(str(file)) == job
    for wrong, message in [
        ({"limits": {"stal": 1}}, "did you mean 'stall'"), ({"limits": {"orphan": 60}}, "limits.orphan"),
        ({"stall_timeout": 60}, "limits.stall"), ({"engine": {"profile": "l4"}}, "engine.profile"),
    ]:  # fmt: skip
        file.write_text(json.dumps({**SPEC, **wrong}))
        with pytest.raises(SliceError, match=message):
            load_spec(str(file))


def test_spec_in_full_may_change_its_task_and_its_engine() -> None:
    job = slice_job()
    classified = changed(job, task="classify")
    assert (classified.task.kind, changed(classified, task="generate")) == ("classify", job)
    for kind in ("m:Mine", "ray_data_llm"):
        other = changed(job, engine__kind=kind)
        assert (other.engine.kind, changed(other, engine__kind="vllm")) == (kind, job)
    with pytest.raises(ValueError, match="idle_timeout"):
        changed(job, engine={**job.engine.model_dump(), "kind": "ray_data_llm", "idle_timeout": 5})


@pytest.mark.parametrize("leaves", [
    {"task": "embed", "labels__exact": "False"}, {"task": "embed", "output_mode": "struct", "tools": None},
    {"task": "classify", "labels__exact": "false"}, {"embedding__normalize": "True"},
    {"images__max_bytes": "20971520", "task": "embed"}, {"audio__timeout": "1m"},
    {"engine__request_timeout": "600"}, {"engine__kind": "m:Mine", "engine__idle_timeout": "10m"},
    {"engine__in_flight": "100", "engine__kwargs": {}},
])  # fmt: skip
def test_default_of_another_task_or_engine_is_no_argument_however_it_is_written(leaves: Any) -> None:
    """A form has all of its fields, whatever the task, and a template renders texts."""
    slice_job(**leaves)


PROFILES = {"l4": {"accelerator": "L4", "workers": 2, "kwargs": {"seed": 1, "dtype": "half"}}}


@pytest.mark.parametrize(("engine", "leaves"), [
    ("l4", PROFILES["l4"]), ({"profile": "l4"}, PROFILES["l4"]), ({"workers": 3}, {"workers": 3}),
    ({"profile": "l4", "workers": 3}, {**PROFILES["l4"], "workers": 3}),
    ({"profile": "l4", "kwargs": {"seed": 2}}, {**PROFILES["l4"], "kwargs": {"seed": 2, "dtype": "half"}}),
    ({"profile": None, "kwargs": None}, {"kwargs": None}),
])  # fmt: skip
def test_leaves_of_the_engine_go_before_those_of_its_profile(engine: Any, leaves: dict[str, Any]) -> None:
    assert with_profile(engine, PROFILES) == leaves


@pytest.mark.parametrize(("engine", "profiles", "says"), [
    ("l5", PROFILES, "'l5' is neither 'auto', 'vllm', 'ray_data_llm', 'http' nor an engine profile"),
    ("l5", PROFILES, "it has 'l4'"), ("l5", {}, "it has none"),
    ({"profile": ["l4"]}, PROFILES, "engine.profile is ['l4']: give the name"),
    ({"profile": "l4", "kwargs": "seed"}, PROFILES, "engine.kwargs is a str: give a dict"),
    ("p", {"p": {"profile": "l4"}, **PROFILES}, "engine profile 'p' names another profile"),
])  # fmt: skip
def test_profile_that_cannot_be_is_refused(engine: Any, profiles: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        with_profile(engine, profiles)


@pytest.mark.parametrize(("engine", "names_one"), [
    ("l4", True), ({"profile": "l4"}, True), ("auto", False), ("http", False), ("m:Mine", False),
    ({"kind": "l4"}, False), (None, False),
])  # fmt: skip
def test_name_of_no_kind_and_no_class_is_a_profile_s(engine: Any, names_one: bool) -> None:
    assert names_profile(engine) is names_one


def test_limits_of_waiting_are_read_as_rendered() -> None:
    assert WaitLimits.from_leaves({}) == WaitLimits(600, 1800, None)
    rendered = {"orphan": "2m", "reconnect": "90", "finish_by": "07:00"}
    assert WaitLimits.from_leaves(rendered) == WaitLimits(90, 120, dt.time(7))
    assert WaitLimits.from_leaves({"orphan": "never"}).orphan_s is None
    assert WaitLimits.from_leaves({"finish_by": "2h"}).finish_by == dt.timedelta(hours=2)
