"""Units are read in another process first, once one that read them has died."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.publishable import CheckedReader
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.input.trial import Trial
from tests.support.deadly_files import deadly_environment, write_deadly_file
from tests.support.in_process import job_of


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The units of a good file, a deadly one, and another good one."""
    for name in ("a", "c"):
        pq.write_table(pa.table({"name": [name]}), tmp_path / f"{name}.parquet")
    write_deadly_file(tmp_path / "b.parquet")
    return make_plan(job_of(input_path=f"{tmp_path}/*.parquet", output_path=f"{tmp_path}/out"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kind"), [
    (signal.SIGSEGV, "input"), (signal.SIGABRT, "input"), (signal.SIGKILL, "transient"),
])  # fmt: skip
def test_unit_that_ends_its_reader_is_named(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, kind: str
) -> None:
    for name, value in deadly_environment(tmp_path / "site", number).items():
        monkeypatch.setenv(name, value)
    trial = Trial(plan, ["name"])
    trial.read(0)
    named = rf"{tmp_path}/b\.parquet: reading its rows 1 to 13 ended two processes, .* by {number.name}"
    with pytest.raises(SliceError, match=named) as raised:
        trial.read(1)
    assert raised.value.kind == kind


@pytest.mark.slow
def test_reader_of_another_attempt_reads_each_unit_in_two_processes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in deadly_environment(tmp_path / "site", signal.SIGSEGV).items():
        monkeypatch.setenv(name, value)  # of processes that start from now on
    reader = CheckedReader(plan, ["name"])
    reader.check_ahead([0, 2], is_retry=True)
    assert [t.column("name").to_pylist() for t in reader.read(2)] == [["c"]]
    with pytest.raises(SliceError, match="ended two processes"):
        next(reader.read(1))
    CheckedReader(plan, ["name"]).check_ahead([0, 1, 2])  # a first attempt has no other process


@pytest.mark.slow
def test_error_of_a_unit_is_its_readers(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").unlink()
    trial = Trial(plan, ["name"])
    trial.read(0)
    trial.read(2)
