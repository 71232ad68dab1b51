"""Some rows of a held slice are asked again, and no others, whatever is killed in between."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import slice_run
from airflow_provider_raydatallm.processor.__main__ import main as decide
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people, ask_again_rejected
from airflow_provider_raydatallm.processor.build_run import BuildRun
from airflow_provider_raydatallm.processor.earlier_answers import NotKept, find_earlier
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.gates.sql import open_query, rows_where
from airflow_provider_raydatallm.processor.publish import commit as commits
from airflow_provider_raydatallm.processor.publish import reconcile, staged_commands
from airflow_provider_raydatallm.processor.publish.garbage import find_leftovers, remove_leftovers
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    discard_for_people,
    discard_rejected,
    publish_approved,
)
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import LAST_NUMBER
from airflow_provider_raydatallm.processor.store.rejections import is_rejected
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import read_staged, staged_names
from tests.support.counting_model import CountingModel as Model
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import shown

N = 60
HOLD = {"of": "truncated", "max": 0.0, "then": "hold"}
CUT = "answer_finish_reason = 'length'"


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    for file in range(3):  # of rows in an order of their own
        rows = [n for n in range(N) if n % 3 == file]
        pq.write_table(pa.table({"n": rows}), tmp_path / "in" / f"{file}.parquet", row_group_size=7)
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{n}", quality__gates=[HOLD],
        publish__details=["finish_reason", "attempts"], quality__max_quarantine=0.5,
    )  # fmt: skip


def held(job: SliceJob, cluster: InProcess) -> str:
    report = run(job, cluster)
    assert report.outcome == "held"
    return str(report.staged_version)


def published(job: SliceJob) -> dict[int, str]:
    rows = pq.read_table(job.slice_path, partitioning=None).to_pylist()
    return {row["n"]: row["answer"] for row in rows}


def expected(again: Callable[[int], bool], times: int = 2) -> dict[int, str]:
    return {n: f"{n}, asked {times if again(n) else 1}" for n in range(N) if n % 20 != 7}


def is_cut(n: int) -> bool:
    return n % 5 == 0


def test_rows_of_a_condition_are_asked_again_and_no_others(job: SliceJob) -> None:
    model = Model()
    cluster = InProcess(answer=model, batch=4, flush_every=3)
    name = held(job, cluster)
    assert ask_again_for_people(job.address, name, CUT) == (name, 12)
    assert shown(job) == set()
    model.cuts = lambda n: False
    model_asked = cluster.answered
    report = run(job, cluster)
    assert (report.outcome, cluster.answered - model_asked) == ("published", 12)
    assert published(job) == expected(is_cut)
    assert (report.counts.succeeded, report.counts.quarantined, report.counts.truncated) == (57, 3, 0)
    assert run(job, cluster).outcome == "unchanged"


def test_rows_of_a_slice_in_an_object_store_are_asked_again(job: SliceJob, s3_store: Store) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    job = changed(job, output_path=f"{s3_store.url}/out")
    name = held(job, cluster)
    assert ask_again_for_people(job.address, name, CUT) == (name, 12)
    model.cuts = lambda n: False
    assert (run(job, cluster).outcome, cluster.answered - N) == ("published", 12)


def test_rows_that_were_asked_twice_are_asked_twice_again(job: SliceJob) -> None:
    """A new answer beside an old second one would tell nothing of chance."""
    model = Model()
    cluster = InProcess(answer=model)
    twice = changed(job, quality__repeat=N)
    ask_again_for_people(job.address, held(twice, cluster), CUT)
    model.cuts = lambda n: False
    model.asked.clear()
    report = run(twice, cluster)
    assert model.asked == {n: 2 for n in range(N) if is_cut(n)}
    assert report.repeat is not None
    assert report.repeat.rows == N


def test_result_is_judged_anew_and_may_be_asked_again_once_more(job: SliceJob) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    ask_again_for_people(job.address, held(job, cluster), CUT)
    model.cuts = lambda n: n == 5
    second = held(job, cluster)
    assert ask_again_for_people(job.address, None, CUT) == (second, 1)
    third = held(job, cluster)
    publish_approved(job, third)
    assert published(job) == {**expected(is_cut), 5: "5, asked 3"}
    assert {n for n, times in model.asked.items() if times > 1} == {n for n in range(N) if is_cut(n)}


@pytest.mark.parametrize("condition", [
    "n IN (SELECT max(n) FROM answers)", "n = 58 -- the last", "n > 57 AND answer LIKE '58%'",
])  # fmt: skip
def test_condition_is_any_that_sql_has(job: SliceJob, condition: str) -> None:
    several = changed(job, publish__file_per_input=True)
    cluster = InProcess(answer=Model())
    name = held(several, cluster)
    wanted = 59 if "max" in condition else 58
    ask_again_for_people(job.address, name, condition)
    publish_approved(several, held(several, cluster))
    assert published(job) == expected(lambda n: n == wanted)


@pytest.mark.parametrize(("condition", "why"), [
    ("nope = 1", "is no condition on the answered rows: Binder Error: Referenced column \"nope\" not found"),
    ("answer IS", "is no condition on the answered rows: Parser Error"),
    ("", "is no condition on the answered rows"),
    ("n = 1) OR (n = 2", "is no condition on the answered rows: Parser Error"),
    ("n = 1; DROP TABLE answers", "is no condition on the answered rows"),
    ("count(*) > 1", "is no condition on the answered rows: Binder Error"),
    ("answer::INTEGER = 1", "is no condition on the answered rows"),
    ("n IN (SELECT n FROM '{out}/*.parquet')", "is no condition on the answered rows"),
    ("n < 0", "selects none of the answered rows"),
    ("n = 7", "selects none of the answered rows"),  # it is in quarantine
])  # fmt: skip
def test_what_is_no_condition_is_refused_and_discards_nothing(
    job: SliceJob, condition: str, why: str
) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    with pytest.raises(SliceError) as refused:
        ask_again_for_people(job.address, name, condition.format(out=job.output_path))
    assert why in refused.value.failure.sentence
    assert refused.value.failure.kind == "input"
    assert "0, asked" not in str(refused.value.failure.sentence)  # of a row
    publish_approved(job, name)
    assert published(job) == expected(lambda n: False)
    assert cluster.answered == N


class KilledError(BaseException):
    pass


def killed(*args: Any, **kwargs: Any) -> Any:
    raise KilledError


@pytest.mark.parametrize("step", ["put", "document", "void", "files", "end"])
def test_killed_command_has_rejected_the_version_or_not(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    name = held(job, cluster)
    with monkeypatch.context() as patch:
        at = {
            "put": (staged_commands, "reject"),
            "document": (staged_commands, "discard"),
            "void": (commits.versions, "void"),
            "files": (commits, "remove_staged_files"),
            "end": (commits, "remove_document"),
        }[step]
        patch.setattr(*at, killed)
        with pytest.raises(KilledError):
            ask_again_for_people(job.address, name, CUT)
    model.cuts = lambda n: False
    if step == "put":
        assert run(job, cluster).staged_version == name
        assert cluster.answered == N
        return
    with pytest.raises(SliceError):
        publish_approved(job, name)
    assert shown(job) == set()
    report = run(changed(job, quality__gates=[]), cluster)
    assert (report.outcome, cluster.answered) == ("published", N + 12)
    assert published(job) == expected(is_cut)
    assert staged_names(SliceFolders.open(job.paths).metadata) == []


def test_run_that_finishes_a_rejection_may_be_killed_too(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    cluster = InProcess(answer=model, batch=5)
    name = held(job, cluster)
    with monkeypatch.context() as patch:
        patch.setattr(staged_commands, "discard", killed)
        with pytest.raises(KilledError):
            ask_again_for_people(job.address, name, CUT)
        patch.setattr(slice_run, "discard", killed)
        with pytest.raises(KilledError):
            run(job, cluster)
    model.cuts = lambda n: False

    def die(batch: pa.Table) -> None:
        if cluster.answered >= N + 5:
            raise KilledError

    cluster.before_batch = die
    with pytest.raises(KilledError):
        run(job, cluster)
    cluster.before_batch = lambda batch: None
    assert run(job, cluster).outcome == "published"
    assert cluster.answered == N + 12
    assert published(job) == expected(is_cut)


@pytest.mark.parametrize("removed", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize("by", ["gc", "publishing"])
def test_rejected_answers_count_no_more_where_removing_them_is_killed(
    job: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, removed: int
) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    ask_again_for_people(job.address, held(job, cluster), "n = 10 OR n = 27")
    left, real = [removed], Store.remove_file

    def remove(store: Store, name: str) -> None:
        if "checkpoint/" in name:
            if not left[0]:
                raise KilledError
            left[0] -= 1
        real(store, name)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove_file", remove)
        with contextlib.suppress(KilledError):
            if by == "gc":
                [found] = find_leftovers(job.address, 0, stale_seconds=0)
                remove_leftovers(found)
            else:
                model.fails = lambda n: n == 10
                run(changed(job, quality__gates=[]), cluster)
                model.fails = lambda n: n % 20 == 7
    if by == "publishing":
        pq.write_table(pa.table({"n": [100]}), tmp_path / "in" / "9.parquet")
    run(changed(job, quality__gates=[], rerun__on_input_change="extend"), cluster)
    assert published(job).get(10) == (None if by == "publishing" else "10, asked 2")


@pytest.mark.parametrize("then", ["another condition", "none", "the same"])
@pytest.mark.parametrize("first", ["is killed", "works meanwhile"])
def test_first_decision_counts_and_others_are_told_so(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    real = staged_commands.reject

    def decide_first(*args: Any) -> Any:
        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            patch.setattr(staged_commands, "reject", real)
            if first == "is killed":
                patch.setattr(staged_commands, "discard", killed)
            ask_again_for_people(job.address, name, CUT)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(staged_commands, "reject", decide_first)
        told: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if then != "the same":
            told = pytest.raises(SliceError, match=f"{name} was rejected already, .* where {re.escape(CUT)}")
        with told:
            if then == "none":
                discard_for_people(job.address, name)
            else:
                ask_again_for_people(job.address, name, CUT if then == "the same" else "n = 3")
    assert staged_names(SliceFolders.open(job.paths).metadata) == []
    publish_approved(job, held(job, cluster))
    assert published(job) == expected(is_cut)


def test_rejected_version_is_not_asked_again_by_another(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    with monkeypatch.context() as patch, contextlib.suppress(KilledError):
        patch.setattr(staged_commands, "discard", killed)
        discard_for_people(job.address, name)
    with pytest.raises(SliceError, match=rf"{name} was rejected already\. Decide"):
        ask_again_for_people(job.address, name, CUT)
    assert held(job, cluster) != name
    assert cluster.answered == N


def test_version_that_is_published_meanwhile_stays(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    real = staged_commands.reject

    def publish_first(*args: Any) -> Any:
        publish_approved(job, name)
        return real(*args)

    monkeypatch.setattr(staged_commands, "reject", publish_first)
    with pytest.raises(SliceError, match="was published"):
        ask_again_for_people(job.address, name, CUT)
    assert [*Path(job.paths.metadata).glob("checkpoint/*")] == []
    assert run(job, cluster).outcome == "unchanged"
    assert published(job) == expected(lambda n: False)


@pytest.mark.parametrize(
    ("module", "killed_at"),
    [(commits, "reconcile"), (reconcile, "_complete"), (commits, "remove_document")],
)
def test_version_whose_publishing_was_killed_is_published(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, module: Any, killed_at: str
) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    with monkeypatch.context() as patch, contextlib.suppress(KilledError):
        patch.setattr(module, killed_at, killed)
        publish_approved(job, name)
    with pytest.raises(SliceError, match=f"{name} was published.*, as version 1 of"):
        ask_again_for_people(job.address, name, CUT)
    assert run(job, cluster).outcome == "unchanged"
    assert published(job) == expected(lambda n: False)


def test_version_whose_file_is_gone_is_refused(job: SliceJob) -> None:
    name = held(job, InProcess(answer=Model()))
    [file] = Path(SliceFolders.open(job.paths).staging.url).glob(f"staged/{name}/part-*")
    file.unlink()
    with pytest.raises(SliceError, match=f"{file.name} is gone"):
        ask_again_for_people(job.address, name, CUT)


@pytest.mark.parametrize("decision", ["again", "reject"])
def test_decision_of_a_version_that_was_staged_anew_is_refused_and_rejects_nothing(
    job: SliceJob, decision: str
) -> None:
    """By another task, which looks at more."""
    cluster = InProcess(answer=Model())
    first = held(job, cluster)
    gates = [HOLD, {"of": "median:answer", "max": 100, "then": "hold"}]
    second = held(changed(job, quality__gates=gates), cluster)
    decide = partial(ask_again_rejected, condition=CUT) if decision == "again" else discard_rejected
    with pytest.raises(SliceError, match=rf"no staged version of .* is named '{first}' \(it has: {second}\)"):
        decide(job, first)
    publish_approved(job, second)
    assert published(job) == expected(lambda n: False)


def test_condition_on_a_version_that_another_one_replaced_is_refused(
    job: SliceJob, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = InProcess(answer=Model())
    job = changed(job, rerun__on_config_change="recompute")
    held(job, cluster)
    run(changed(job, prompt="0{n}", quality__gates=[]), cluster)
    assert main(["discard", job.output_path, job.slice_key, "--again", CUT]) == 1
    told = capsys.readouterr().err
    assert "another version was published since: it cannot be published any more" in told
    assert "Traceback" not in told


def test_condition_on_what_somebody_rejected_otherwise_is_refused(job: SliceJob) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    ask_again_rejected(job, name, CUT)
    ask_again_rejected(job, name, CUT)  # by a job whose end nobody heard of
    discard_rejected(job, name)
    with pytest.raises(SliceError, match=r"no staged version of .* is named"):
        ask_again_rejected(job, name, "n = 3")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_condition_is_in_utc_on_every_machine(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    hours = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(24)]
    rows = dataset.dataset(pa.table({"made": hours, "half": np.zeros(24, np.float16)}))
    assert rows_where(rows, "made < '2026-01-01 03:00'").tolist() == [0, 1, 2]
    assert open_query("SELECT count(*) FROM answers WHERE made::DATE = '2026-01-01'")(rows) == 24
    with pytest.raises(SliceError, match=r"over the columns made$") as refused:
        rows_where(rows, "half = 0")
    assert "half" in refused.value.failure.sentence


def test_golden_rows_are_asked_again_beside_rows_that_are(job: SliceJob, tmp_path: Path) -> None:
    """By another model perhaps, which is the one to judge then."""
    pq.write_table(pa.table({"n": [100, 101], "answer": ["100, asked 2", "?"]}), tmp_path / "golden.parquet")
    model = Model()
    cluster = InProcess(answer=model)
    with_golden = changed(job, quality__golden={"path": f"{tmp_path}/golden.parquet"})
    ask_again_for_people(job.address, held(with_golden, cluster), CUT)
    model.cuts = lambda n: False
    report = run(with_golden, cluster)
    assert (report.outcome, cluster.answered) == ("published", N + 2 + 12 + 2)
    assert report.golden is not None
    assert report.golden.correct == 1
    more = pa.table({"n": [103]})
    pq.write_table(more, tmp_path / "in" / "late.parquet")
    report = run(changed(with_golden, rerun__on_input_change="extend"), cluster)
    assert (report.outcome, model.asked[100], model.asked[103]) == ("published", 3, 1)


def test_golden_rows_of_a_slice_that_a_gate_stopped_are_asked_once(job: SliceJob, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [100, 101], "answer": ["100, asked 1", "?"]}), tmp_path / "golden.parquet")
    model = Model()
    cluster = InProcess(answer=model)
    stopped = changed(
        job,
        quality__golden={"path": f"{tmp_path}/golden.parquet"},
        quality__gates=[{"of": "golden", "min": 0.9}],
    )
    for _ in range(2):
        with pytest.raises(SliceError, match="golden"):
            run(stopped, cluster)
    assert model.asked[100] == 1


def test_golden_rows_are_asked_of_the_model_that_answered_last(job: SliceJob, tmp_path: Path) -> None:
    """A gate stopped the slice, and what it lacked another model answers."""
    pq.write_table(pa.table({"n": [100], "answer": ["100, asked 1"]}), tmp_path / "golden.parquet")
    model = Model()
    cluster = InProcess(answer=model)
    with_golden = changed(
        job,
        quality__golden={"path": f"{tmp_path}/golden.parquet"},
        quality__gates=[{"of": "quarantined", "max": 0}],
    )
    with pytest.raises(SliceError, match="quarantined"):
        run(with_golden, cluster)
    model.fails = lambda n: False
    report = run(changed(with_golden, rerun__retry_quarantined=True), cluster)
    assert report.golden is not None
    assert (report.outcome, report.golden.correct, model.asked[100]) == ("published", 0, 2)


@pytest.mark.parametrize("has_failures", [False, True])
def test_rows_are_asked_again_once_also_where_the_leases_are_lost(job: SliceJob, has_failures: bool) -> None:
    """To a rule of the store, or to a copy of the table: epochs do not begin anew."""
    model = Model()
    cluster = InProcess(
        answer=model, before_batch=lambda batch: pytest.fail("without end") if model.asked[10] > 9 else None
    )
    ask_again_for_people(job.address, held(job, cluster), CUT)
    shutil.rmtree(Path(job.paths.metadata) / "lease")
    model.cuts = lambda n: False
    if has_failures:
        model.fails = lambda n: n == 10
    report = run(changed(job, quality__max_attempts=3), cluster)
    assert report.outcome == "published"
    assert {n for n, times in model.asked.items() if times > 1} >= {n for n in range(N) if is_cut(n)}
    assert model.asked[10] == (4 if has_failures else 2)


def test_decision_of_a_later_epoch_than_any_run_ends_the_run(job: SliceJob) -> None:
    """Which others may have put there."""
    model = Model()
    cluster = InProcess(answer=model)
    ask_again_for_people(job.address, held(job, cluster), CUT)
    [document] = Path(job.paths.metadata).glob("checkpoint/*/again-*.json")
    name = document.relative_to(job.paths.metadata)
    metadata = SliceFolders.open(job.paths).metadata
    metadata.put_document(str(name), {**metadata.read_document(str(name)), "last_epoch": LAST_NUMBER})
    with pytest.raises(SliceError, match=r"12 row\(s\) came back from the engine neither"):
        run(job, cluster)
    assert model.asked[10] == 2


def test_rows_that_fail_now_are_in_quarantine_and_attempts_count_anew(job: SliceJob) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    more = changed(job, quality__max_attempts=2)
    ask_again_for_people(job.address, held(more, cluster), "n IN (10, 27, 20)")
    name = held(more, cluster)
    staged = read_staged(SliceFolders.open(job.paths), name)
    assert staged is not None
    publish_approved(more, name)
    rows = pq.read_table(job.slice_path, partitioning=None).to_pylist()
    assert {row["answer_attempts"] for row in rows} == {1}
    assert model.asked[7] == 2
    assert {n for n, times in model.asked.items() if times == 2} == {7, 27, 47, 10, 20}


def test_published_answers_that_were_taken_over_stay(job: SliceJob, tmp_path: Path) -> None:
    model = Model(lambda n: False)
    cluster = InProcess(answer=model)
    assert run(job, cluster).outcome == "published"
    pq.write_table(pa.table({"n": [100, 101]}), tmp_path / "in" / "9.parquet")
    model.cuts = lambda n: n == 100
    more = changed(job, rerun__on_input_change="extend")
    name = held(more, cluster)
    with pytest.raises(SliceError, match="are published already, in version 1"):
        ask_again_for_people(job.address, name, "n < 50")
    assert ask_again_for_people(job.address, name, "n < 50 OR n = 100") == (name, 1)
    publish_approved(more, held(more, cluster))
    assert published(job) == {**expected(lambda n: False), 100: "100, asked 2", 101: "101, asked 1"}


def test_rows_that_a_run_answered_anew_are_asked_again_though_others_were_taken_over_before(
    job: SliceJob, tmp_path: Path
) -> None:
    """By an extension that was killed, of which all rows were answered again instead."""
    model = Model(lambda n: False)
    cluster = InProcess(answer=model)
    run(job, cluster)
    pq.write_table(pa.table({"n": [100, 101]}), tmp_path / "in" / "9.parquet")
    cluster.before_batch = killed
    with pytest.raises(KilledError):
        run(changed(job, rerun__on_input_change="extend"), cluster)
    cluster.before_batch = lambda batch: None
    model.cuts = lambda n: n in (5, 10, 100)
    anew = changed(job, rerun__on_input_change="recompute")
    name = held(anew, cluster)
    assert ask_again_for_people(job.address, name, CUT) == (name, 3)
    model.cuts = lambda n: False
    assert (run(anew, cluster).counts.truncated, cluster.answered) == (0, N + N + 2 + 3)


def test_rejected_answers_are_published_by_no_version_with_other_columns_beside_them(job: SliceJob) -> None:
    """A DAG published details for a while, so that a person could say which rows."""
    model = Model()
    cluster = InProcess(answer=model)
    plain = changed(job, publish__details=[])
    first = held(plain, cluster)
    ask_again_for_people(job.address, held(job, cluster), CUT)
    with pytest.raises(SliceError, match=f"{first} of .* was rejected: its answers"):
        publish_approved(plain, first)
    model.cuts = lambda n: False
    report = run(changed(plain, quality__gates=[]), cluster)
    assert (report.outcome, cluster.answered - N) == ("published", 12)
    assert published(job) == expected(is_cut)


@pytest.mark.parametrize("then", ["approval", "next run"])
def test_rejected_answers_are_published_by_no_version_that_was_staged_after_the_rejected_one(
    job: SliceJob, then: str
) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    plain = changed(job, publish__details=[])
    first = held(plain, cluster)
    second = held(job, cluster)
    assert ask_again_for_people(job.address, first, "n % 5 = 0") == (first, 12)
    if then == "approval":
        with pytest.raises(SliceError, match=f"{second} of .* was rejected: its answers"):
            publish_approved(job, second)
    model.cuts = lambda n: False
    assert run(changed(job, quality__gates=[]), cluster).outcome == "published"
    assert (published(job), cluster.answered) == (expected(is_cut), N + 12)


def test_rejected_answers_are_published_with_no_other_rows_that_a_killed_run_staged(
    job: SliceJob, tmp_path: Path
) -> None:
    """The gate holds the slice's rows, and lets the same pass among more."""
    model = Model(lambda n: is_cut(n) and n < N)
    cluster = InProcess(answer=model)
    few = {"of": "truncated", "max": 0.1, "then": "hold"}
    grows = changed(job, rerun__on_input_change="recompute", quality__gates=[few])
    name = held(grows, cluster)
    pq.write_table(pa.table({"n": range(1001, 1101)}), tmp_path / "in" / "9.parquet")
    with pytest.raises(KilledError):
        slice_run.run_slice(grows, lambda progress: None, cluster, before_commit=killed)
    ask_again_for_people(job.address, name, CUT)
    model.cuts = lambda n: False
    assert (run(grows, cluster).counts.truncated, cluster.answered) == (0, N + 100 + 12)


@pytest.mark.parametrize("at", ["probes", "commit", "put"])
def test_run_publishes_no_answers_of_a_version_that_was_rejected_meanwhile(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    model = Model()
    cluster = InProcess(answer=model)
    name = held(changed(job, publish__details=[]), cluster)
    where, step = {
        "probes": (BuildRun, "stage"), "commit": (commits, "_confirm_columns"), "put": (commits, "_put")
    }[at]  # fmt: skip
    real = getattr(where, step)

    def reject_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(where, step, real)
        ask_again_for_people(job.address, name, "n % 5 = 0")
        model.cuts = lambda n: False
        return real(*args, **kwargs)

    monkeypatch.setattr(where, step, reject_first)
    report = run(changed(job, quality__gates=[]), cluster)
    assert (report.outcome, cluster.answered) == ("published", N + 12)
    assert published(job) == expected(is_cut)


def test_decision_that_a_version_honours_rejects_it_no_more(job: SliceJob) -> None:
    """Another one on the same version does."""
    model = Model()
    cluster = InProcess(answer=model)
    first = held(changed(job, publish__details=[]), cluster)
    ask_again_for_people(job.address, first, "n % 5 = 0")
    second = held(job, cluster)
    assert held(job, cluster) == second
    folders = SliceFolders.open(job.paths)
    staged = read_staged(folders, second)
    assert staged is not None
    document = next(Path(job.paths.metadata).glob(f"checkpoint/*/again-{first}.json"))
    name = document.relative_to(job.paths.metadata).as_posix()
    decision = folders.metadata.read_document(name)
    folders.metadata.put_document(name, {**decision, "condition": "n % 5 = 0 -- once more"})
    assert is_rejected(folders.metadata, staged)


def test_run_publishes_nothing_that_was_rejected_since_it_staged_it(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where who rejected it was killed before it was discarded."""
    model = Model()
    cluster = InProcess(answer=model)
    folders = SliceFolders.open(job.paths)
    rejected = []

    def die(*of: Any) -> None:
        raise KeyboardInterrupt

    def reject() -> None:
        if not rejected:
            rejected.extend(staged_names(folders.metadata))
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(staged_commands, "discard", die)
                ask_again_for_people(job.address, rejected[0], CUT)

    report = slice_run.run_slice(
        changed(job, quality__gates=[]), lambda progress: None, cluster, before_commit=reject
    )
    assert (report.outcome, cluster.answered - N) == ("published", 12)
    assert published(job) == expected(is_cut)


def test_damaged_decision_is_told_of_and_asks_nothing(job: SliceJob) -> None:
    cluster = InProcess(answer=Model())
    ask_again_for_people(job.address, held(job, cluster), CUT)
    [document] = Path(job.paths.metadata).glob("checkpoint/*/again-*.json")
    document.write_text(document.read_text().replace("length", "longer"))
    with pytest.raises(SliceError, match="says what a person rejected, and is damaged"):
        run(job, cluster)
    document.unlink()  # as it advises
    held(job, cluster)
    assert cluster.answered == N


def test_plan_says_which_answers_were_rejected(job: SliceJob) -> None:
    cluster = InProcess(answer=Model())
    ask_again_for_people(job.address, held(job, cluster), CUT)
    build, _ = slice_run.inspect_slice(job, SliceFolders.open(job.paths), read_only=True)
    assert build is not None
    earlier, to_answer = find_earlier(build, build.load_state())
    assert (to_answer, earlier.answered, earlier.quarantined) == (12, 45, 3)
    assert earlier.not_kept == (NotKept(12, "a person rejected them, to have these rows asked again"),)


def _write_input_anew(job: SliceJob) -> SliceJob:
    for file in Path(job.input_path).iterdir():
        pq.write_table(pq.read_table(file), file, row_group_size=11)
    return changed(job, rerun__on_input_change="recompute")


def _edit_question(job: SliceJob) -> SliceJob:
    return changed(job, columns=("n",), prompt="{n} ")


@pytest.mark.parametrize("edit", [lambda job: job, _write_input_anew, _edit_question])
def test_engine_takes_no_answers_of_others_for_rows_that_are_asked_again(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, edit: Callable[[SliceJob], SliceJob]
) -> None:
    """Also where they are others to the ledger: their requests may be the same."""
    told: list[int] = []
    monkeypatch.setattr(Engine, "take_no_earlier_answers", lambda engine: told.append(1))
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    assert told == []
    ask_again_for_people(job.address, name, CUT)
    held(edit(job), cluster)
    assert told == [1]


def test_commands_ask_rows_again(job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = InProcess(answer=Model())
    name = held(job, cluster)
    slice_ = [job.output_path, job.slice_key]
    assert main(["discard", *slice_, "--again", "n IN (1, 2)"]) == 0
    assert (
        f"{name} is discarded; the next run asks 2 of its rows again, and the others"
        in capsys.readouterr().out
    )
    assert held(job, cluster) != name
    assert main(["discard", *slice_, "--again", "n = 1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["asked_again"] == 1
    name = held(job, cluster)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    for _ in range(2):  # by a job whose end nobody heard of
        assert decide(["decide", f"{tmp_path}/spec.json", "--staged", name, "--again", "n = 1"]) == 0
    publish_approved(job, held(job, cluster))
    assert published(job) == {**expected(lambda n: n == 2), 1: "1, asked 4"}
