"""A version that is staged on a real cluster, and published by a later run or by a command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.in_process import job_of
from tests.support.paths import ROOT
from tests.support.slice_files import answers
from tests.support.slices import PROGRAM

NAMES = [f"n{i}" for i in range(200)]


def test_run_that_only_stages_is_published_later_by_a_run_or_a_command_for_no_token(
    ray_head: LocalHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"name": NAMES}), tmp_path / "in.parquet")
    delivered = tmp_path / "delivered"  # by the engine

    def slice_of(day: str) -> SliceJob:
        return job_of(
            slice_key=day, input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
            engine__kwargs={"delivered": str(delivered)},
        )  # fmt: skip

    def spec_of(job: SliceJob) -> str:
        spec = tmp_path / f"{job.slice_key}.json"
        spec.write_text(job.model_dump_json())
        return str(spec)

    def run(job: SliceJob, *arguments: str) -> Any:
        command = [PROGRAM, "run", spec_of(job), "--json", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def said(command: str, job: SliceJob) -> Any:
        """Of a command that needs no cluster."""
        assert main([command, spec_of(job), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    by_run, by_command = slice_of("2026-01-30"), slice_of("2026-01-31")
    names: dict[str, str] = {}
    for job in (by_run, by_command):
        names[job.slice_key] = run(job, "--stage-only")["staged"]
        assert not Path(job.slice_path).exists()
        [entry] = said("versions", job)
        assert (entry["version"], entry["staged"]) == (None, names[job.slice_key])
        assert (entry["rows"], entry["problem"]) == (len(NAMES), None)
    paid = delivered.read_text()
    assert sum(map(int, paid.split())) == 2 * len(NAMES)

    report = run(by_run)
    assert (report["outcome"], report["counts"]["succeeded"]) == ("published", len(NAMES))
    committed = {"committed": names[by_command.slice_key], "published_version": 1}
    assert said("commit", by_command) == committed
    assert delivered.read_text() == paid
    for job in (by_run, by_command):
        assert answers(job) == NAMES
        [entry] = said("versions", job)
        assert (entry["version"], entry["rows"]) == (1, len(NAMES))
