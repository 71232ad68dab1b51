"""Functions of users that gates ask about a slice."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.gates.own_checks import CheckPlan
from airflow_provider_raydatallm.processor.publish.staged_commands import publish_approved
from tests.support.in_process import InProcess, changed, job_of, run_in_process


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SliceJob:
    (tmp_path / "in").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_checks.py").write_text(
        """
import numpy as np

def rows(answers):
    assert "answer" in answers.schema.names
    return answers.count_rows()

def raises(answers):
    raise KeyError("Jane")

def text(answers):
    return "Jane"

def nan(answers):
    return float("nan")

def true(answers):
    return True

def large(answers):
    return 10**400

def numpy_rows(answers):
    return np.int64(answers.count_rows())
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    write(tmp_path, 3)
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality__max_quarantine=1)


def write(folder: Path, rows: int) -> None:
    names = [f"n{i}" for i in range(rows)]
    pq.write_table(pa.table({"name": [*names, "fail"]}), folder / "in" / "a.parquet")


def asking(job: SliceJob, function: str, **gate: Any) -> SliceJob:
    return changed(job, quality__gates=[{"of": f"own_checks:{function}", **gate}])


def files(job: SliceJob) -> list[Path]:
    return [*Path(job.slice_path).glob("*")]


def test_number_of_a_function_is_judged_as_another_figure(job: SliceJob) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"own_checks:rows is 3, above max 2"):
        run_in_process(asking(job, "rows", max=2), cluster)
    assert files(job) == []
    report = run_in_process(asking(job, "rows", max=3), cluster)
    assert [(gate.of, gate.value, gate.verdict) for gate in report.gates or ()] == [
        ("own_checks:rows", 3, "passed")
    ]
    assert cluster.answered == 4


def test_number_of_numpy_is_one(job: SliceJob) -> None:
    with pytest.raises(SliceError, match=r"own_checks:numpy_rows is 3, above max 2"):
        run_in_process(asking(job, "numpy_rows", max=2))


def test_function_is_asked_again_of_what_was_staged(job: SliceJob) -> None:
    cluster = InProcess()
    held = run_in_process(asking(job, "rows", then="hold"), cluster)
    again = run_in_process(asking(job, "rows", max=1, then="hold"), cluster)
    assert (again.outcome, again.staged_version) == ("held", held.staged_version)
    assert str((again.gates or ())[0]) == "own_checks:rows is 3, above max 1"
    assert publish_approved(job, str(held.staged_version)).published_version == 1
    assert cluster.answered == 4


def test_its_change_is_a_ratio_to_what_it_said_of_slices_before(job: SliceJob, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        run_in_process(changed(asking(job, "rows", min=1), slice_key=f"2026-01-0{day}"))
    write(tmp_path, 12)
    with pytest.raises(SliceError, match=r"own_checks:rows against 3 slice\(s\) is 4, above max 2"):
        run_in_process(changed(asking(job, "rows", against=5, max=2), slice_key="2026-01-04"))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("raises", "raised a KeyError"),
        ("text", "returned a str, which is no finite number"),
        ("nan", "returned a float, which is no finite number"),
        ("true", "returned a bool, which is no finite number"),
        ("large", "returned a int, which is no finite number"),
    ],
)
def test_function_that_says_no_number_publishes_nothing(job: SliceJob, function: str, says: str) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=says) as raised:
        run_in_process(asking(job, function, min=0, then="warn"), cluster)
    assert raised.value.failure.sentence.startswith(f"the check 'own_checks:{function}' {says}")
    assert "Jane" not in str(raised.value.failure.without_row_texts())
    assert files(job) == []
    assert run_in_process(asking(job, "rows", min=0), cluster).outcome == "published"
    assert cluster.answered == 4


def test_function_that_is_not_there_is_told_before_a_row_is_answered(job: SliceJob) -> None:
    cluster = InProcess()
    for reference in ("own_checks:none", "no_such_module:rows"):
        gates = [{"of": reference, "min": 0}]
        with pytest.raises(SliceError):
            run_in_process(changed(job, quality__gates=gates), cluster)
    assert cluster.answered == 0


def of_sql(job: SliceJob, query: str, **gate: Any) -> SliceJob:
    return changed(job, quality__gates=[{"of": f"sql:{query}", **gate}])


def test_number_of_a_query_is_judged_as_another_figure(job: SliceJob) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"sql:SELECT count\(\*\) FROM answers is 3, above max 2"):
        run_in_process(of_sql(job, "SELECT count(*) FROM answers", max=2), cluster)
    query = "WITH ours AS (SELECT * FROM answers WHERE name > 'n0') SELECT avg(length(name)) FROM ours"
    report = run_in_process(of_sql(job, query, max=2), cluster)
    assert [(gate.value, gate.verdict) for gate in report.gates or ()] == [(2, "passed")]
    assert cluster.answered == 4


def test_columns_that_duckdb_cannot_read_hide_no_others(job: SliceJob, tmp_path: Path) -> None:
    half, wide = pa.array(np.array([1.5], np.float16)), pa.array([Decimal("1.5")], pa.decimal256(50, 2))
    of_half = pa.array([{"half": 1.5}], pa.struct([("half", pa.float16())]))
    table = pa.table({"name": ["n0"], "half": half, "wide": wide, "of_half": of_half, "n": [7]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    report = run_in_process(of_sql(job, "SELECT sum(n + length(name)) FROM answers", max=9))
    assert [gate.value for gate in report.gates or ()] == [9]
    with pytest.raises(SliceError, match="raised a BinderException"):
        run_in_process(of_sql(changed(job, slice_key="2026-02-01"), "SELECT sum(half) FROM answers", max=9))


@pytest.mark.slow
@pytest.mark.parametrize("query", [
    "SELECT length(string_agg(repeat('x', 1000000), '')) FROM range(3000)",
    "SELECT count(*) FROM (SELECT range, random() r FROM range(60000000) ORDER BY r)",
])  # fmt: skip
def test_query_that_takes_much_memory_ends_and_fills_no_disk(
    job: SliceJob, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    with pytest.raises(SliceError, match="raised a OutOfMemoryException"):
        run_in_process(of_sql(job, query, max=9))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELCT 1", "is not one SELECT: Parser Error"),
        ("SELECT 1; SELECT 2", "is not one SELECT"),
        ("COPY answers TO '/tmp/copy.csv'", "is not one SELECT"),
        ("-- nothing", "is not one SELECT"),
    ],
)
def test_text_that_is_no_query_is_refused_before_a_row_is_answered(
    job: SliceJob, query: str, says: str
) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=says):
        run_in_process(of_sql(job, query, max=1), cluster)
    assert cluster.answered == 0


def test_cluster_without_duckdb_is_told_before_a_row_is_answered(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    cluster = InProcess()
    with pytest.raises(SliceError, match="needs DuckDB, which the Ray cluster lacks"):
        run_in_process(of_sql(job, "SELECT 1 FROM answers", max=1), cluster)
    assert cluster.answered == 0


@pytest.mark.parametrize("against", [{}, {"against": 3}])
@pytest.mark.parametrize(("then", "outcome"), [("warn", "published"), ("hold", "held"), ("fail", None)])
def test_query_that_knows_nothing_stops_a_slice_as_its_gate_says(
    job: SliceJob, then: str, outcome: str | None, against: dict[str, int]
) -> None:
    """As of a day without rows."""
    query = "SELECT avg(length(name)) FROM answers WHERE name = ''"
    gated = of_sql(job, query, max=9, then=then, **against)
    if outcome is None:
        with pytest.raises(SliceError, match=r"did not pass: sql:SELECT avg.* is not known"):
            run_in_process(gated)
        assert files(job) == []
        return
    report = run_in_process(gated)
    [verdict] = report.gates or ()
    assert (report.outcome, verdict.value, verdict.figure) == (outcome, None, None)
    assert verdict.verdict == ("held" if then == "hold" else "unknown")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT none FROM answers", "raised a BinderException"),
        ("SELECT name::INT FROM answers", "raised a ConversionException"),
        ("SELECT name FROM answers LIMIT 1", "returned a str"),
        ("SELECT length(name) FROM answers", r"found several rows of 1 column\(s\)"),
        ("SELECT count(*) FROM answers HAVING count(*) > 9", r"found 0 row\(s\) of 1 column\(s\)"),
        ("SELECT 1, 2 FROM answers LIMIT 1", r"found 1 row\(s\) of 2 column\(s\)"),
        ("SELECT count(*) FROM read_csv('/etc/passwd')", "raised a PermissionException"),
        ("SELECT count(*) FROM read_parquet('s3://bucket/x')", "raised a (Permission|Missing)"),
        ("SELECT count(*) FROM plan", "raised a CatalogException"),
    ],
)
def test_query_that_gives_no_number_publishes_nothing(job: SliceJob, query: str, says: str) -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=says) as raised:
        run_in_process(of_sql(job, query, min=0, then="warn"), cluster)
    assert "n1" not in str(raised.value.failure.without_row_texts())
    assert files(job) == []
    assert run_in_process(of_sql(job, "SELECT count(*) FROM answers", min=0), cluster).outcome == "published"
    assert cluster.answered == 4


def test_check_whose_process_ends_is_named(job: SliceJob) -> None:
    class Loses(InProcess):
        def run_tasks(self, function: Any, inputs: Any, timeout: float) -> Any:
            if any(isinstance(one, CheckPlan) for one in inputs):
                raise SliceError("the worker died", kind="transient")
            return super().run_tasks(function, inputs, timeout)

    with pytest.raises(SliceError, match=r"^quality\.gates \(own_checks:rows\): the worker died") as raised:
        run_in_process(asking(job, "rows", min=1), Loses())
    assert raised.value.failure.kind == "transient"
