"""A counter is a line in the table of counters, and arrives wherever counters are shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.counters import COUNTERS
from airflow_provider_raydatallm.contract.result.report import Report
from tests.support.paths import ROOT

_RUN_WITH_NEW_COUNTERS = """
import sys
import pyarrow as pa, pyarrow.parquet as pq
from airflow_provider_raydatallm.contract.result import counters

counters.COUNTERS += (
    counters.Counter("blue", "bool", "counts", "engine", "Rows that are blue", "llm_rows_blue"),
    counters.Counter("image_tokens", "int", "tokens", "engine", "Tokens of images"),
)

from airflow_provider_raydatallm.processor.metrics.meter import Meter, WriterUpdate
from airflow_provider_raydatallm.processor.metrics.prometheus import METRICS
from tests.support.in_process import InProcess, answer_with, job_of, run_in_process

class Cluster(InProcess):
    def run_inference(self, run, on_update):
        meter = Meter(run.inference.plan.rows, 0)
        def add(update):
            meter.add(update)
            on_update(update)
        super().run_inference(run, add)
        self.progress = meter.progress()

folder = sys.argv[1]
pq.write_table(pa.table({"name": ["a", "b", "c"]}), f"{folder}/in.parquet")
cluster = Cluster(batch=2, answer=answer_with(blue=True, image_tokens=5))
report = run_in_process(job_of(input_path=f"{folder}/in.parquet", output_path=f"{folder}/out"), cluster)
print(report.counts.blue, report.tokens.image, cluster.progress["blue"], *METRICS["blue"], sep="; ")
"""


@pytest.mark.slow
def test_counter_needs_its_line_and_a_value_to_arrive_in_the_report(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RUN_WITH_NEW_COUNTERS, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True)
    last_line = process.stdout.splitlines()[-1:]
    assert last_line == ["3; 15; 3; llm_rows_blue; Rows that are blue, in this run"], process.stderr[-2000:]


def test_docs_show_every_counter() -> None:
    page = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^## XCom\n.*?```json\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    shown = json.loads(re.sub(r"//.*", "", example))
    report = Report(
        outcome="empty", slice_key="k", output_path="/o", fingerprint="f",
        counts={"planned": 0, "succeeded": 0},
    )  # fmt: skip
    xcom = report.to_xcom(report_path=None, ray_job_id=None, dashboard_url=None, queued=None, total=None)
    assert [list(shown[section]) for section in ("counts", "tokens")] == [
        list(xcom[section]) for section in ("counts", "tokens")
    ]
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for counter in COUNTERS:
        assert counter.metric is None or {f"`{counter.name}`", f"`ray_{counter.metric}`"} <= set(
            re.findall(r"`\w+`", measured)
        ), counter.name
