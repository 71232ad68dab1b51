from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Cost, Counts, Report
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.lineage.facets import SLICE_FACET, slice_lineage
from airflow_provider_raydatallm.lineage.table_names import dataset_name, input_table, output_table
from tests.support.slice_jobs import spec


def job(**given: Any) -> SliceJob:
    fields = {"input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "x"}
    return spec(**{"slice_key": "a/b", **fields, **given})


@pytest.mark.parametrize(
    ("address", "namespace", "name"),
    [
        ("s3://lake/a/b/", "s3://lake", "a/b"),
        ("s3a://lake/a#b?c", "s3://lake", "a#b?c"),
        ("s3://lake", "s3://lake", "/"),
        ("gs://lake/a/b", "gs://lake", "a/b"),
        ("gcs://lake/a", "gs://lake", "a"),
        ("abfs://box@acc.dfs.core.windows.net/a/b", "abfss://box@acc.dfs.core.windows.net", "a/b"),
        ("abfss://box@acc.dfs.core.windows.net/a", "abfss://box@acc.dfs.core.windows.net", "a"),
        ("file:///data/a/", "file", "/data/a"),
        ("/data/a/", "file", "/data/a"),
        ("a/b", "file", os.path.abspath("a/b")),
    ],
)
def test_datasets_are_named_by_the_specification(address: str, namespace: str, name: str) -> None:
    assert dataset_name(address) == (namespace, name)


@pytest.mark.parametrize(
    ("path", "address", "partition", "location"),
    [
        ("s3://lake/t/ds={slice}/", "s3://lake/t", {"ds": "a/b"}, None),
        ("s3://lake/t/country=D%20E/ds={slice}/*.csv", "s3://lake/t", {"country": "D E", "ds": "a/b"}, None),
        ("s3://lake/t/ds={slice}/country=*/", "s3://lake/t", {"ds": "a/b"}, None),
        ("s3://lake/t/{slice}/part-*.parquet", "s3://lake/t", {}, "s3://lake/t/a%2Fb/part-*.parquet"),
        # Tables of one landing folder stay apart.
        ("s3://lake/ds={slice}/t.csv", "s3://lake/ds={slice}/t.csv", {}, "s3://lake/ds=a%2Fb/t.csv"),
        ("/lake/t-{slice}.csv", "/lake/t-{slice}.csv", {}, "/lake/t-a%2Fb.csv"),
        # Rendered by Jinja instead.
        ("s3://lake/t/ds=a%2Fb", "s3://lake/t", {"ds": "a/b"}, None),
        ("s3://lake/a%2Fb/t", "s3://lake/{slice}/t", {}, "s3://lake/a%2Fb/t"),
        # A whole table.
        ("s3://lake/t", "s3://lake/t", {}, None),
        ("s3://lake", "s3://lake", {}, None),
        ("/", "/", {}, None),
    ],
)
def test_input_is_a_table_and_its_partition(
    path: str, address: str, partition: dict[str, str], location: str | None
) -> None:
    table = input_table(job(input_path=path))
    assert (table.address, table.partition, table.location) == (address, partition, location)


def test_slice_column_is_a_partition_of_the_table() -> None:
    table = input_table(job(input_path="s3://lake/t", source__column="day"))
    assert (table.address, table.partition) == ("s3://lake/t", {"day": "a/b"})


@pytest.mark.parametrize(("given", "address", "partition", "location"), [
    ({"output_path": "s3://lake/t/"}, "s3://lake/t", {"ds": "a/b"}, None),
    ({"output_path": "s3://lake/t/day={slice}"}, "s3://lake/t", {"day": "a/b"}, None),
    ({"output_path": "s3://lake/t/{slice}"}, "s3://lake/t", {}, "s3://lake/t/a%2Fb"),
    ({"output_path": "s3://lake/{slice}/t"}, "s3://lake/{slice}/t", {}, "s3://lake/a%2Fb/t"),
    ({"output_path": "/t", "source__max_rows": 5}, "/t.trial/first-5", {"ds": "a/b"}, None),
    ({"output_path": "/t/{slice}", "source__max_rows": 5}, "/t.trial/first-5", {}, "/t.trial/first-5/a%2Fb"),
])  # fmt: skip
def test_output_is_a_table_and_its_partition(
    given: dict[str, Any], address: str, partition: dict[str, str], location: str | None
) -> None:
    table = output_table(job(**given))
    assert (table.address, table.partition, table.location) == (address, partition, location)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "rows"),
    [("published", 2), ("empty", 2), ("unchanged", None), ("attached", None), ("kept", None)],
)
def test_statistics_are_of_what_this_run_wrote(outcome: Any, rows: int | None) -> None:
    spec, counts = job(), Counts(planned=2, succeeded=2)
    report = Report(
        outcome=outcome, slice_key="a/b", output_path=spec.slice_path, fingerprint="f", counts=counts,
        cost=Cost.of(3600.0, 2.5, rows=2, tokens=0),
    )  # fmt: skip
    airflow_side = {"ray_job_id": "j", "dashboard_url": None, "queued": None, "total": None}
    lineage = slice_lineage(spec, report.to_xcom(report_path=spec.paths.report(1), **airflow_side))
    written = lineage.outputs[0].outputFacets.get("outputStatistics")
    read = lineage.inputs[0].inputFacets.get("inputStatistics")
    assert (written and written.rowCount, read and read.rowCount) == (rows, rows)
    facet = lineage.run_facets[SLICE_FACET]
    assert (facet.outcome, facet.fingerprint, facet.quarantinePath) == (outcome, fingerprint(spec), None)
    assert facet.cost["total"] == 2.5


@pytest.mark.slow
def test_what_gates_said_are_assertions_of_the_output() -> None:
    gates = (
        GateVerdict(of="truncated", value=0.5, max=0.1, verdict="warned"),
        GateVerdict(of="rows", value=2, min=1, verdict="passed"),
        GateVerdict(of="rows", value=None, against=7, max=2, verdict="unknown"),
    )
    report = Report(
        outcome="published", slice_key="a/b", output_path="/o", fingerprint="f", gates=gates,
        counts=Counts(planned=2, succeeded=2),
    )  # fmt: skip
    result = report.to_xcom(report_path=None, ray_job_id=None, dashboard_url=None, queued=None, total=None)
    facet = slice_lineage(job(), result).outputs[0].outputFacets["dataQualityAssertions"]
    assert [(one.assertion, one.success) for one in facet.assertions] == [
        ("truncated is 0.5, above max 0.1", False), ("rows is 2", True),
    ]  # fmt: skip


@pytest.mark.slow
def test_failure_is_told_without_the_texts_of_rows() -> None:
    failure = Failure("input", "row 7 is wrong", advice=("Look",), row_texts=("Jane",), counts={"planned": 9})
    facet = slice_lineage(job(), None, failure=failure).run_facets[SLICE_FACET]
    assert facet.failure == {
        "kind": "input", "sentence": "row 7 is wrong", "advice": ["Look"], "counts": {"planned": 9},
    }  # fmt: skip
    assert facet.outcome is None


@pytest.mark.slow
def test_operator_works_where_openlineage_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['openlineage'] = None\n"
        "from airflow_provider_raydatallm.lineage import assets, openlineage, table_names\n"
        "class Task(openlineage.SliceLineage): pass\n"
        "from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob\n"
        "job = SliceJob(slice_key='k', input_path='/i', output_path='/o', model_source='m', prompt='x')\n"
        "Task().record_run(job, result={})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
