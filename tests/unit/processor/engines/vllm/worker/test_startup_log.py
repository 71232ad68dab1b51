"""The parts of a run's start in its report."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_raydatallm.contract.result.report import StartupSeconds
from airflow_provider_raydatallm.processor.engines.vllm.worker import startup_log
from airflow_provider_raydatallm.processor.metrics import startup_time
from airflow_provider_raydatallm.processor.metrics.meter import Meter

#: Of vLLM 0.29 and 0.26, shortened.
GPU = """\
(Worker_TP0 pid=9) INFO 11-22 02:49:51 [default_loader.py:430] Loading weights took 2.25 seconds
(Worker_TP1 pid=10) INFO 11-22 02:49:51 [gpu_model_runner.py:5472] Model loading took 14.99 GiB memory and \
4.250000 seconds
(Worker_TP0 pid=9) INFO 11-22 02:49:51 [gpu_model_runner.py:5472] Model loading took 14.99 GiB memory and \
3.000000 seconds
(EngineCore pid=8) INFO 11-22 02:50:20 [core.py:360] init engine (profile, create kv cache, warmup model) \
took 30.50 s (compilation: 20.25 s)
"""
GPU_SECONDS = {"load": 4.25, "compile": 20.25, "warm_up": 10.25}  # of the slower process
CPU = """\
(EngineCore pid=8) INFO 11-22 02:49:51 [default_loader.py:430] Loading weights took 0.50 seconds
(EngineCore pid=8) INFO 11-22 02:49:51 [core.py:367] init engine (profile, create kv cache, warmup model) \
took 1.50 s
"""


@pytest.mark.parametrize(("log", "seconds"), [
    (GPU, GPU_SECONDS),
    (GPU.replace("GiB memory and", "GiB and"), GPU_SECONDS),  # of its newer model runner
    (GPU.replace("20.25 s)", "20.25 s — language_model: 20.00 s, encoder: 0.25 s)"), GPU_SECONDS),
    (GPU.replace(" s (compilation: 20.25 s)", " seconds"), {"load": 4.25, "compile": 0, "warm_up": 30.5}),
    (GPU + GPU.replace("took 30.50 s", "took 25.00 s"), GPU_SECONDS),  # two data-parallel ranks
    (CPU, {"load": 0.5, "compile": 0, "warm_up": 1.5}), ("INFO something else took 3.00 seconds\n", {}),
    ("", {}),
])  # fmt: skip
def test_parts_of_an_engines_start_are_read_from_vllms_log(log: str, seconds: dict[str, float]) -> None:
    assert startup_log.parse_startup_seconds(log) == seconds


def test_log_is_read_where_it_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "worker.out", "w") as log:
        log.write("logged before\n")
        log.flush()
        monkeypatch.setattr(startup_log, "_STDOUT", log.fileno())
        assert startup_log.read_process_log() == "logged before\n"
    reading, writing = os.pipe()
    monkeypatch.setattr(startup_log, "_STDOUT", writing)
    assert startup_log.read_process_log() == ""  # and does not wait for more
    os.close(reading)
    os.close(writing)


def test_process_knows_its_age() -> None:
    now = time.time()
    # The kernel's seconds since its boot are whole ones there.
    assert startup_time.process_seconds() == pytest.approx(now - psutil.Process().create_time(), abs=2)


@pytest.mark.parametrize(
    ("config", "job", "seconds"),
    [
        ({"metadata": {"job_submission_id": "j"}}, SimpleNamespace(start_time=993_000), 5),
        ({"metadata": {"job_submission_id": "j"}}, SimpleNamespace(start_time=1_000_000), 0),  # two clocks
        ({"metadata": {"job_submission_id": "j"}}, None, None),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_time_of_the_environment_is_from_submission_to_process(
    monkeypatch: pytest.MonkeyPatch, config: Any, job: Any, seconds: float | None
) -> None:
    monkeypatch.setattr(startup_time, "process_seconds", lambda: 2.0)
    monkeypatch.setattr(startup_time, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr("ray.util.state.get_job", lambda id, timeout: job if id == "j" else None)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    if config is not None:
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(config))
    assert startup_time.environment_seconds() == seconds


def test_report_has_the_parts_that_are_known() -> None:
    sections = Meter(1, 0).report_sections(start={"environment": None, "imports": 1.00049, "warm_up": 0.5})
    start = sections["seconds"].start
    assert start == StartupSeconds(imports=1.0, warm_up=0.5)
    assert str(start) == "imports 1.0 s, warm up 0.5 s"
    assert Meter(1, 0).report_sections()["seconds"].start is None
