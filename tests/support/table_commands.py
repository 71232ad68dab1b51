"""Commands over a table, called in this process, and the progress files that they read."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.in_process import changed

Out = pytest.CaptureFixture[str]

ANSWERING = {"step": "answer", "rows": 1, "planned": 5, "rows_per_s": 2.0, "tokens_per_s": 8.0, "eta_s": 2}


def of_day(job: SliceJob, day: str, **fields: Any) -> SliceJob:
    return changed(job, slice_key=day, **fields)


def say(out: Out, *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    captured = out.readouterr()
    return captured.out if code == 0 else captured.err


def write_progress(job: SliceJob, age_s: float, **progress: Any) -> None:
    when = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)
    folder = Path(job.paths.metadata)
    folder.mkdir(parents=True, exist_ok=True)
    value = {"slice_key": job.slice_key, "when": when.isoformat(timespec="seconds"), **progress}
    (folder / "progress.json").write_text(json.dumps(value))
