"""The Params of the trigger form: as Airflow checks a run's conf, and as the page's actions set them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.slice_params import slice_params, slices_asked
from tests.support.context import context_of
from tests.support.paths import ROOT

PARAMS = slice_params(models=["small", "large"], engines=["l4", "h100"], ranges=True)


def values(**conf: Any) -> dict[str, Any]:
    params = ParamsDict(dict(PARAMS))
    params.update(conf)
    return dict(params.validate())


def test_defaults_are_those_of_the_operator() -> None:
    assert values() == {
        "slice": None, "last_slice": None, "model": "small", "engine": "l4", "max_rows": None,
        "retry_quarantined": False, "force": False, "max_quarantine": 0.1,
    }  # fmt: skip
    assert set(slice_params()) == set(PARAMS) - {"model", "engine", "last_slice"}


@pytest.mark.parametrize("conf", [
    {"slice": "yesterday"}, {"slice": 20260131}, {"last_slice": "2026-02-30"}, {"model": "other"},
    {"engine": "package.module:Class"}, {"max_rows": 0}, {"max_rows": "100"}, {"force": "yes"},
    {"retry_quarantined": 1}, {"max_quarantine": 5}, {"max_quarantine": -0.1}, {"max_quarantine": "0.1"},
])  # fmt: skip
def test_airflow_refuses_wrong_values_before_there_is_a_run(conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        values(**conf)


@pytest.mark.parametrize("name", ["models", "engines"])
def test_one_name_is_no_list_of_letters(name: str) -> None:
    with pytest.raises(ValueError, match="is 'small': give a list"):
        slice_params(**{name: "small"})


def test_each_has_a_title_and_a_description_for_the_form() -> None:
    for param in PARAMS.values():
        assert param.schema["title"]
        assert param.description


def test_actions_of_the_page_need_no_others() -> None:
    actions = (ROOT / "ui" / "src" / "actions.ts").read_text()
    needed = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"needs: \[(.*?)\]", actions))))
    assert "retry_quarantined" in needed
    assert needed <= set(slice_params())


@pytest.mark.parametrize("conf", [
    {}, {"slice": "2026-01-31", "force": True, "max_quarantine": 1, "retry_quarantined": True, "max_rows": 7},
])  # fmt: skip
def test_their_templates_give_the_operator_their_values(
    conf: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = {"l4": {"accelerator": "L4"}, "h100": {"accelerator": "H100"}}
    ray = {"conn_type": "ray", "host": "http://ray:8265", "extra": {"engines": profiles}}
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(ray))
    documented = slice_params.__doc__ or ""
    for name in set(PARAMS) - {"slice", "last_slice"}:
        assert f"{{{{ params.{name} }}}}" in documented
    with DAG("d", schedule=None):
        task = RayLLMBatchOperator(
            task_id="t", input_path="/in", output_path="/out", prompt="{a}", slice_key="k",
            model_source="{{ params.model }}", engine="{{ params.engine }}",
            source={"max_rows": "{{ params.max_rows }}"},
            rerun={
                "retry_quarantined": "{{ params.retry_quarantined }}", "force": "{{ params.force }}",
            },
            quality={"max_quarantine": "{{ params.max_quarantine }}"},
        )  # fmt: skip
    task.render_template_fields({"params": values(**conf)})  # type: ignore[arg-type]
    job = task.slice_job(context_of(task))[0]
    assert (job.model_source, job.engine.gpu) == ("small", "L4")
    assert job.source.max_rows == conf.get("max_rows")
    assert (job.rerun.force, job.rerun.retry_quarantined) == (bool(conf), bool(conf))
    assert job.quality.max_quarantine == (1 if conf else 0.1)


def test_range_is_each_of_its_days() -> None:
    assert slices_asked({"slice": "2026-02-27", "last_slice": "2026-03-01"}) == [
        "2026-02-27", "2026-02-28", "2026-03-01",
    ]  # fmt: skip
    assert slices_asked({"slice": "2026-02-27", "last_slice": None}) == ["2026-02-27"]


@pytest.mark.parametrize(("params", "says"), [
    ({"slice": None}, "'slice' is empty"), ({}, "'slice' is empty"),
    ({"slice": "2026-01-02", "last_slice": "2026-01-01"}, "'2026-01-01', before 'slice'"),
    ({"slice": "x"}, "are 'x' and None"),
])  # fmt: skip
def test_impossible_range_is_refused(params: dict[str, Any], says: str) -> None:
    with pytest.raises(RayLLMInputError, match=says):
        slices_asked(params)
