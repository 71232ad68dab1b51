"""Arguments in groups, as people write them in DAGs and specs."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.groups import flatten
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.__main__ import load_spec
from airflow_provider_raydatallm.task.arguments import WaitLimits

SPEC = {"slice_key": "k", "input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "{a}"}


@pytest.mark.parametrize(("rerun", "fields"), [
    ("keep", {}), (None, {}), ("extend", {"on_input_change": "extend"}),
    ("recompute", {"on_config_change": "recompute", "on_input_change": "recompute"}),
    ({"force": True, "on_running": "fail"}, {"force_rerun": True, "on_running": "fail"}),
])  # fmt: skip
def test_rerun_has_short_forms_and_parts(rerun: Any, fields: dict[str, Any]) -> None:
    assert flatten({"rerun": rerun, "prompt": "x"}) == {"prompt": "x", **fields}


def test_spec_in_a_file_has_groups_or_flat_fields(tmp_path: Path) -> None:
    groups = {"engine": {"workers": [1, 4], "idle_timeout": "never"}, "limits": {"stall": "1h30m"}}
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**SPEC, **groups}))
    job = load_spec(str(file))
    assert (job.concurrency, job.engine_idle_timeout, job.stall_timeout) == ((1, 4), None, 5400)
    file.write_text(job.model_dump_json())  # as the operator sends it
    assert load_spec(str(file)) == job
    for wrong, message in [
        ({"limits": {"stal": 1}}, "did you mean 'stall'"), ({"limits": {"orphan": 60}}, "orphan"),
        ({"limits": {"stall": 60}, "stall_timeout": 60}, "are the same: give one of them"),
    ]:  # fmt: skip
        file.write_text(json.dumps({**SPEC, **wrong}))
        with pytest.raises(SliceError, match=message):
            load_spec(str(file))


def test_limits_of_waiting_are_read_as_rendered() -> None:
    assert WaitLimits.from_arguments({}) == WaitLimits(600, 1800, None)
    rendered = {"orphan_timeout": "2m", "reconnect_timeout": "90", "finish_by": "07:00"}
    assert WaitLimits.from_arguments(rendered) == WaitLimits(90, 120, dt.time(7))
    assert WaitLimits.from_arguments({"orphan_timeout": "never"}).orphan_s is None
    assert WaitLimits.from_arguments({"finish_by": "2h"}).finish_by == dt.timedelta(hours=2)
