"""What people rejected, or had asked again, is published by nobody afterwards: from wherever it may come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.publish import commit as commits
from airflow_provider_raydatallm.processor.publish.garbage import find_leftovers, remove_leftovers
from airflow_provider_raydatallm.processor.publish.staged_commands import discard_for_people, publish_approved
from tests.support.counting_model import CountingModel
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run

N = 20
LENIENT = [{"of": "truncated", "max": 1, "then": "hold"}]
HOLD = [{"of": "rows", "then": "hold"}]


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": list(range(N))}), tmp_path / "in" / "0.parquet")
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{n}",
        quality__gates=[{"of": "truncated", "max": 0.3, "then": "hold"}], quality__max_quarantine=0.9,
    )  # fmt: skip


@pytest.fixture
def model() -> CountingModel:
    model = CountingModel(lambda n: n < 10)
    model.fails = lambda n: False
    return model


def published(job: SliceJob) -> dict[int, str]:
    files = list(Path(job.slice_path).glob("*.parquet"))
    rows = pq.read_table(job.slice_path, partitioning=None).to_pylist() if files else []
    return {row["n"]: row["answer"] for row in rows}


@pytest.mark.parametrize("at", ["_confirm_columns", "_put"])
def test_rejection_counts_until_the_commit(
    job: SliceJob, model: CountingModel, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Of another version with the same answers, whose own gates let them pass."""
    cluster = InProcess(answer=model)
    name = run(job, cluster).staged_version
    other = changed(job, publish__details=["attempts"], quality__gates=LENIENT)
    step = getattr(commits, at)

    def reject_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(commits, at, step)
        discard_for_people(job.address, name)
        return step(*args, **kwargs)

    monkeypatch.setattr(commits, at, reject_first)
    assert run(other, cluster).outcome == "held"
    assert published(job) == {}


@pytest.mark.parametrize("since", ["published", "collected"])
@pytest.mark.parametrize("again", ["", "n < 10"])
def test_engine_takes_no_earlier_answers_once_people_rejected_some(
    job: SliceJob, model: CountingModel, monkeypatch: pytest.MonkeyPatch, again: str, since: str
) -> None:
    """A cache has them for longer than the checkpoint that says which they were."""
    told: list[int] = []
    cluster = InProcess(answer=model)
    name = run(job, cluster).staged_version
    if again:
        ask_again_for_people(job.address, name, again)
    else:
        discard_for_people(job.address, name)
    if since == "published":
        publish_approved(job, str(run(changed(job, quality__gates=HOLD), cluster).staged_version))
    else:
        for found in find_leftovers(job.address, 0, stale_seconds=0):
            remove_leftovers(found)
        assert not list(Path(job.paths.metadata).glob("checkpoint/*"))
    monkeypatch.setattr(Engine, "take_no_earlier_answers", lambda engine: told.append(1))
    pq.write_table(pa.table({"n": [100]}), Path(job.input_path) / "1.parquet")
    run(changed(job, rerun__on_input_change="recompute"), cluster)
    assert told == [1]


def test_answers_that_were_all_asked_again_are_published_by_no_later_version(
    job: SliceJob, model: CountingModel
) -> None:
    """Also where rows of another input, which nobody published, lie beside those from before."""
    cluster = InProcess(answer=model)
    hold = changed(job, quality__gates=HOLD, rerun__on_input_change="recompute")
    run(hold, cluster)
    pq.write_table(pa.table({"n": [100]}), Path(job.input_path) / "1.parquet")
    publish_approved(hold, str(run(hold, cluster).staged_version))
    publish_approved(hold, str(run(changed(hold, rerun__force=True), cluster).staged_version))
    assert set(model.asked.values()) == {2}
    pq.write_table(pa.table({"n": [101]}), Path(job.input_path) / "2.parquet")
    assert run(changed(hold, quality__gates=[]), cluster).outcome == "published"
    assert not any(answer.endswith("asked 1") for n, answer in published(job).items() if n != 101)


def test_force_asks_all_rows_again_also_where_another_question_is_published(
    job: SliceJob, model: CountingModel
) -> None:
    cluster = InProcess(answer=model)
    job = changed(job, rerun__on_config_change="recompute", quality__gates=HOLD)
    run(changed(job, quality__gates=[]), cluster)
    better = changed(job, prompt="{n} ")
    discard_for_people(job.address, str(run(better, cluster).staged_version))
    before = cluster.answered
    report = run(changed(better, rerun__force=True), cluster)
    assert (report.outcome, cluster.answered - before) == ("held", N)
    assert [gate.of for gate in report.gates or ()] == ["rows"]
