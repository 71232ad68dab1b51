"""A slice whose GPUs cost more than `limits.max_cost`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferenceRun, OnUpdate
from airflow_provider_raydatallm.processor.metrics import progress
from airflow_provider_raydatallm.processor.publish.staged_commands import discard_for_people
from airflow_provider_raydatallm.processor.sizing.facts import Resources
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from tests.support import stub_engine
from tests.support.in_process import InProcess, answer_with, changed, job_of, run_in_process
from tests.support.waiting import wait_for

GATES_OF_COST = [{"of": "cost", "max": 0.5}]
#: Of a job's rows.
ROWS, BATCH = 40, 10


class GpuEngine(stub_engine.StubEngine):
    """As if it held two GPUs."""

    def gpus_held(self, workers: int | None) -> float | None:
        return 2.0


class ManyGpus(stub_engine.StubEngine):
    """Whose workers hold so many GPUs each, by `engine.kwargs`."""

    def gpus_held(self, workers: int | None) -> float | None:
        return (workers or 1) * float(self.job.engine.arguments["gpus_of_each"])


class WithJudge(InProcess):
    """Batches of the slice take 100 s, each on the next of so many workers; the judge waits, and takes, so
    long."""

    def __init__(self, clock: Clock, *, workers: int = 1, judges_s: float, waits_s: float = 0) -> None:
        super().__init__(batch=BATCH, answer=self._answer)
        self._clock, self._workers = clock, workers
        self._judges_s, self._waits_s, self._is_judge = judges_s, waits_s, False

    def _answer_run(self, run: InferenceRun, on_update: OnUpdate) -> None:
        self._is_judge = run.inference.job.model_source == "m/judge"
        waits = range(1, 5) if self._is_judge and self._waits_s else ()
        for quarter in waits:
            self._clock.now += self._waits_s / len(waits)
            waited_s = self._waits_s * quarter / len(waits)
            run.on_wait({"waited_s": waited_s, "needs": "", "engine": ""})
        super()._answer_run(run, on_update)

    def _answer(self, batch: pa.Table) -> pa.Table:
        self._clock.now += self._judges_s if self._is_judge else 100
        workers = 1 if self._is_judge else self._workers
        answers = stub_engine.answer(batch)
        names = pa.array([f"w{self.answered // BATCH % workers}"] * answers.num_rows)
        return answers.set_column(answers.schema.get_field_index("worker"), "worker", names)


class Clock:
    """Time that passes only with batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        monkeypatch.setattr(time, "time", lambda: self.now)

    def pass_(self, seconds: float) -> Callable[[pa.Table], None]:
        def before_batch(batch: pa.Table) -> None:
            self.now += seconds

        return before_batch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(ROWS)]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
        engine=f"{__name__}:GpuEngine", engine__gpu_hour_price=1.8,
    )  # fmt: skip


def limited(job: SliceJob, max_cost: float, **given: Any) -> SliceJob:
    return changed(job, limits__max_cost=max_cost, **given)


def ends(job: SliceJob, cluster: InProcess) -> SliceError:
    with pytest.raises(SliceError) as ended:
        run_in_process(job, cluster)
    return ended.value


def test_run_ends_at_the_limit_and_a_higher_one_continues(job: SliceJob, clock: Clock) -> None:
    # 100 s of two GPUs cost 0.1, and so does a batch.
    first, second, third = (InProcess(batch=BATCH, before_batch=clock.pass_(100)) for _ in range(3))
    failure = ends(limited(job, 0.15), first).failure
    assert (failure.kind, failure.can_retry) == ("input", False)
    assert failure.sentence == (
        "the slice's GPUs have cost 0.2 of limits.max_cost 0.15, with 20 of 40 rows answered"
    )
    assert failure.advice == ("Raise limits.max_cost and clear the task: no answered row is asked again",)
    # Of the same limit nothing is asked, and the first try's cost counts for a higher one.
    refused = ends(limited(job, 0.15), second).failure
    assert (second.answered, refused.sentence) == (0, failure.sentence)
    again = ends(limited(job, 0.25), second).failure
    assert (second.answered, "cost 0.3 of limits.max_cost 0.25, with 30 of" in again.sentence) == (10, True)
    report = run_in_process(limited(job, 0.5), third)
    assert (third.answered, report.outcome, report.counts.resumed) == (10, "published", 30)
    assert report.gpu_seconds == pytest.approx(200, abs=1)
    assert report.cost is not None
    assert report.cost.total == pytest.approx(0.4, abs=1e-3)  # with those before
    assert report.cost.per_1000_rows == pytest.approx(10, abs=0.1)  # of this one
    assert not Store(job.paths.metadata).names("checkpoint")


def test_slice_that_is_only_to_be_published_is_not_refused(job: SliceJob, clock: Clock) -> None:
    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    gate: dict[str, Any] = {"quality__gates": [{"of": "cost", "max": 0.3}]}
    assert "cost is 0.4, above max 0.3" in ends(changed(job, **gate), cluster).failure.sentence
    assert "cost is 0.4, above max 0.3" in ends(limited(job, 0.1, **gate), cluster).failure.sentence
    report = run_in_process(limited(job, 0.1), cluster)
    assert (cluster.answered, report.outcome, report.gpu_seconds) == (ROWS, "published", None)


def test_rate_that_a_gate_stopped_is_stopped_again(job: SliceJob, clock: Clock) -> None:
    """By a run that finds all rows answered, and has no rate of its own."""
    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    dear = changed(job, quality__gates=[{"of": "cost_per_1000_rows", "max": 9}])
    for _ in range(2):
        assert "cost_per_1000_rows is 10, above max 9" in ends(dear, cluster).failure.sentence
    golden = Path(job.input_path).parent / "golden.jsonl"
    golden.write_text('{"name": "g", "answer": "g"}')
    dear = changed(dear, quality__golden={"path": str(golden)})
    assert "cost_per_1000_rows is 12.5, above max 9" in ends(dear, cluster).failure.sentence
    report = run_in_process(job, cluster)
    assert report.cost is not None
    assert (report.cost.per_1000_rows, report.cost.per_million_tokens) == (pytest.approx(12.5, abs=0.1), None)


def test_rate_of_a_retry_that_a_gate_stopped_is_stopped_again(job: SliceJob, clock: Clock) -> None:
    """By the rows that were asked, not by those that it adds."""
    lost = changed(job, quality__max_quarantine=1)
    broken = answer_with(text=None, error="broken", error_type="Broken")
    run_in_process(lost, InProcess(batch=BATCH, answer=broken))
    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    gates = [{"of": "cost_per_1000_rows", "max": 9}]
    dear = changed(lost, rerun__retry_quarantined=True, quality__gates=gates)
    for _ in range(2):
        assert "cost_per_1000_rows is 10, above max 9" in ends(dear, cluster).failure.sentence
    assert cluster.answered == ROWS


class ScalingEngine(stub_engine.StubEngine):
    """Which needs two GPUs, and does not say how many it has come to."""

    @property
    def resources(self) -> Resources:
        return Resources(1, 2, "a stub")


def test_engine_that_does_not_say_how_many_gpus_it_holds_counts_with_those_that_it_needs(
    job: SliceJob, clock: Clock
) -> None:
    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    scales = changed(job, engine__kind=f"{__name__}:ScalingEngine")
    assert "cost 0.2 of limits.max_cost 0.15" in ends(limited(scales, 0.15), cluster).failure.sentence
    report = run_in_process(scales, cluster)
    assert (report.outcome, report.gpu_seconds, report.cost) == ("published", None, None)


def test_last_rows_are_published_though_they_reached_the_limit(job: SliceJob, clock: Clock) -> None:
    report = run_in_process(limited(job, 0.4), InProcess(batch=BATCH, before_batch=clock.pass_(100)))
    assert (report.outcome, report.cost and report.cost.total) == ("published", pytest.approx(0.4, abs=1e-3))


def test_golden_rows_end_no_slice_whose_rows_are_answered(job: SliceJob, clock: Clock) -> None:
    golden = Path(job.input_path).parent / "golden.jsonl"
    golden.write_text("".join(f'{{"name": "g{i}", "answer": "g{i}"}}\n' for i in range(3 * BATCH)))
    dear = limited(job, 0.4, quality__golden={"path": str(golden)})
    report = run_in_process(dear, InProcess(batch=BATCH, before_batch=clock.pass_(100)))
    assert (report.outcome, report.golden and report.golden.rows) == ("published", 3 * BATCH)
    assert report.cost is not None
    assert report.cost.total == pytest.approx(0.7, abs=1e-3)  # with theirs
    assert report.cost.per_1000_rows == pytest.approx(10, abs=0.1)


def test_retry_asks_golden_rows_of_a_slice_that_has_spent_its_limit_on_its_own(
    job: SliceJob, clock: Clock
) -> None:
    golden = Path(job.input_path).parent / "golden.jsonl"
    golden.write_text('{"name": "g", "answer": "g"}')

    def pass_or_die(batch: pa.Table) -> None:
        clock.pass_(100)(batch)
        if '"g"' in batch["__request"][0].as_py():
            raise OSError("the node is gone")

    dear = limited(job, 0.4, quality__golden={"path": str(golden)})
    with pytest.raises(Exception, match="node is gone"):
        run_in_process(dear, InProcess(batch=BATCH, before_batch=pass_or_die))
    metadata = Store(job.paths.metadata)
    [question] = metadata.names("checkpoint")
    Checkpoint(metadata, question).save_cost(1, 0.5)
    report = run_in_process(dear, InProcess(batch=BATCH))
    assert (report.outcome, report.golden and report.golden.correct) == ("published", 1)


@pytest.mark.parametrize("decision", ["again", "reject"])
def test_answers_that_a_person_rejected_have_cost_what_they_cost(
    job: SliceJob, clock: Clock, decision: str
) -> None:
    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    waits = changed(job, quality__gates=[{"of": "rows", "then": "hold"}])
    first = run_in_process(waits, cluster)
    if decision == "again":
        ask_again_for_people(job.address, first.staged_version, "name IN ('n0', 'n1')")
        assert "cost 0.4 of limits.max_cost 0.35" in ends(limited(waits, 0.35), cluster).failure.sentence
    else:
        discard_for_people(job.address, first.staged_version)
    second = run_in_process(waits, cluster)
    costs = [report.cost and report.cost.total for report in (first, second)]
    assert costs == pytest.approx([0.4, 0.5 if decision == "again" else 0.4], abs=1e-3)


def test_answers_that_were_not_published_are_no_cost_of_what_takes_over_others(
    job: SliceJob, clock: Clock, tmp_path: Path
) -> None:
    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    (tmp_path / "in").mkdir()
    (tmp_path / "in.parquet").rename(tmp_path / "in" / "a.parquet")
    job = changed(job, input_path=f"{tmp_path}/in/")
    ends(changed(job, quality__gates=[{"of": "rows", "max": 1}]), cluster)
    run_in_process(changed(job, rerun__force=True), cluster)
    pq.write_table(pa.table({"name": [f"m{i}" for i in range(BATCH)]}), tmp_path / "in" / "b.parquet")
    report = run_in_process(limited(job, 0.3, rerun__on_input_change="extend"), cluster)
    assert report.cost is not None
    assert report.cost.total == pytest.approx(0.1, abs=1e-3)


def test_killed_try_counts_as_far_as_it_kept_its_cost(job: SliceJob, clock: Clock) -> None:
    def fail(batch: pa.Table) -> None:
        clock.now += 100
        raise OSError("the node is gone")

    cluster = InProcess(batch=BATCH, before_batch=clock.pass_(100))
    with pytest.raises(Exception, match="node is gone"):
        run_in_process(job, InProcess(batch=BATCH, before_batch=fail))
    metadata = Store(job.paths.metadata)
    [question] = metadata.names("checkpoint")
    checkpoint = Checkpoint(metadata, question)
    assert checkpoint.costs() == {}  # nothing is known of a run that had no update
    ends(limited(job, 0.05), cluster)
    assert list(checkpoint.costs().values()) == [pytest.approx(0.1, abs=1e-3)]
    metadata.put(f"checkpoint/{question}/cost-000001.json", b"damaged")
    metadata.put_document(f"checkpoint/{question}/cost-000007.json", -5.0)
    metadata.put_document(f"checkpoint/{question}/cost-000008.json", "much")
    checkpoint.save_cost(9, 0.25)
    assert 9 in checkpoint.costs()
    assert all(cost > 0 for cost in checkpoint.costs().values())
    assert {7, 8} & checkpoint.costs().keys() == set()
    report = run_in_process(limited(job, 5), cluster)
    assert report.outcome == "published"


def test_cost_is_kept_while_the_run_works(
    job: SliceJob, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a run that is killed."""
    monkeypatch.setattr(progress, "_EXPORT_SECONDS", 0.02)
    batches = 0

    def wait_until_kept(batch: pa.Table) -> None:
        nonlocal batches
        metadata = Store(job.paths.metadata)
        [question] = metadata.names("checkpoint")
        expected = [pytest.approx(0.1 * batches, abs=1e-3)] if batches else []
        wait_for(lambda: list(Checkpoint(metadata, question).costs().values()) == expected)
        clock.now += 100
        batches += 1

    run_in_process(job, InProcess(batch=BATCH, before_batch=wait_until_kept))
    assert batches == 4


@pytest.mark.parametrize(
    ("workers", "gpus", "judge_gpus", "judges_s", "waits_s", "cost"),
    [
        (4, 4, 1, 1100, 0, 0.4 * 16 + 1.1),
        (1, 1, 8, 100, 0, 0.4 + 0.8),
        (4, 1, 8, 100, 1000, 1.6 + 0.8),
        (1, 1, 0.25, 100, 1000, 0.4 + 0.025),
    ],
)
def test_each_engine_costs_its_own_gpus_as_long_as_it_has_them(
    job: SliceJob, clock: Clock, workers: int, gpus: float, judge_gpus: float, judges_s: float,
    waits_s: float, cost: float,
) -> None:  # fmt: skip
    asks = {"model": "m/judge", "prompt": "{answer}?", "kwargs": {"gpus_of_each": judge_gpus}, "rows": BATCH}
    judged = changed(
        job, engine__kind=f"{__name__}:ManyGpus", engine__kwargs={"gpus_of_each": gpus},
        engine__gpu_hour_price=3.6, quality__judge=asks,
    )  # fmt: skip
    cluster = WithJudge(clock, workers=workers, judges_s=judges_s, waits_s=waits_s)
    report = run_in_process(judged, cluster)
    assert (report.outcome, report.judge and report.judge.rows) == ("published", BATCH)
    assert report.cost is not None
    assert report.cost.total == pytest.approx(cost, abs=1e-2)
    assert report.cost.per_1000_rows == pytest.approx(0.4 * workers * gpus / ROWS * 1000, abs=0.1)


class Growing(ManyGpus):
    """Has more workers with time."""

    fewest_workers = 1


def test_workers_that_come_with_time_cost_from_then_on(job: SliceJob, clock: Clock) -> None:
    growing = changed(
        job,
        engine__kind=f"{__name__}:Growing",
        engine__kwargs={"gpus_of_each": 1},
        engine__gpu_hour_price=3.6,
    )
    # Of four workers the third and fourth come after 300 s and 400 s, and the first took 100 s to start.
    cluster = WithJudge(clock, workers=4, judges_s=0)
    report = run_in_process(limited(growing, 1.15), cluster)
    assert report.cost is not None
    assert report.cost.total == pytest.approx(0.001 * (400 + 400 + 200 + 100), abs=1e-2)


def test_waiting_for_a_second_engine_costs_nothing(job: SliceJob, clock: Clock) -> None:
    """Rows that the first one's limit was too low for."""
    calls = 0

    class Waiting(InProcess):
        def _answer_run(self, run: InferenceRun, on_update: OnUpdate) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                clock.now += 1000
                run.on_wait({"waited_s": 1000.0, "needs": "", "engine": ""})
            rows = run.missing
            if calls == 1:
                rows = MissingRows(rows.units, rows.ends, rows.spans - [[0, ROWS // 2]])
            super()._answer_run(replace(run, missing=rows), on_update)

    report = run_in_process(job, Waiting(batch=BATCH, before_batch=clock.pass_(100)))
    assert (report.outcome, calls) == ("published", 2)
    assert report.gpu_seconds == pytest.approx(800, abs=1)
    assert report.cost is not None
    assert report.cost.total == pytest.approx(0.4, abs=1e-3)


def test_without_a_price_no_cost_is_kept(job: SliceJob, clock: Clock) -> None:
    def no_files(batch: pa.Table) -> None:
        clock.now += 100
        [question] = Store(job.paths.metadata).names("checkpoint")
        assert Checkpoint(Store(job.paths.metadata), question).costs() == {}

    report = run_in_process(changed(job, engine__gpu_hour_price=None), InProcess(before_batch=no_files))
    assert (report.cost, report.gpu_seconds) == (None, pytest.approx(800, abs=1))


def test_rows_keep_their_cost_while_a_version_without_them_is_published(tmp_path: Path, clock: Clock) -> None:
    """A late file is taken away and comes back; the version between is another run's."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in" / "0.parquet")
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", rerun__on_input_change="extend",
        quality__gates=GATES_OF_COST, engine=f"{__name__}:GpuEngine", engine__gpu_hour_price=1.8,
    )  # fmt: skip
    cheap, dear = (InProcess(batch=10, before_batch=clock.pass_(seconds)) for seconds in (1, 1000))
    assert run_in_process(job, cheap).published_version == 1
    late = tmp_path / "in" / "1.parquet"
    pq.write_table(pa.table({"name": ["c", "d"]}), late)
    with pytest.raises(SliceError, match="cost is 1"):
        run_in_process(job, dear)
    away = late.rename(tmp_path / late.name)
    assert run_in_process(changed(job, rerun__force=True), cheap).published_version == 2
    away.rename(late)
    asked = cheap.answered
    with pytest.raises(SliceError, match="cost is 1"):
        run_in_process(job, cheap)
    assert cheap.answered == asked
