"""The real engines on clusters with too few CPUs or just enough: they run, or say at once why they cannot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.in_process import job_of
from tests.support.paths import ROOT


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Unix sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(cpus: int, engine: str, tmp_path: Path, model: Path, ray_folder: Path) -> tuple[int, str, float]:
    """Exit status, what was said, and seconds of the run without Ray's own start."""
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(40)]}), tmp_path / "in.parquet")
    job = job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", engine=engine,
        model_source=str(model), sampling_params={"max_tokens": 4}, engine__kwargs={"max_model_len": 256},
    )  # fmt: skip
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.small_cluster", str(cpus), f"{tmp_path}/spec.json",
         str(ray_folder)],
        cwd=ROOT, env=os.environ | {"RAY_AUTH_MODE": "disabled"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    [seconds] = re.findall(r"ended after ([\d.]+) s", done.stderr)
    return done.returncode, done.stderr, float(seconds)


@pytest.mark.long
@pytest.mark.parametrize(("cpus", "engine"), [(1, "vllm"), (2, "ray_data_llm")])
def test_cluster_that_is_too_small_is_told_and_not_waited_for(
    cpus: int, engine: str, tiny_model: Path, tmp_path: Path, short_folder: Path
) -> None:
    code, said, seconds = run(cpus, engine, tmp_path, tiny_model, short_folder)
    assert code == 1
    assert f"the slice needs 4 CPUs where the cluster has {cpus} (" in said
    assert "Add nodes, or lower engine.workers" in said
    assert seconds < 240  # of a day (limits.queue); some seconds, where nothing else runs
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_smallest_cluster_that_is_not_refused_answers(
    tiny_model: Path, tmp_path: Path, short_folder: Path
) -> None:
    code, said, _ = run(4, "vllm", tmp_path, tiny_model, short_folder)
    assert code == 0, said
    [found] = tmp_path.glob("out.ray_llm/*/reports/report-*.json")
    report = json.loads(found.read_text())
    assert report["counts"]["succeeded"] == 40
