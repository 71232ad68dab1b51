"""What was answered before all rows were asked again counts for nothing, and what was answered since, or lies
beside, stays paid."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import commit as commits
from airflow_provider_raydatallm.processor.publish.staged_commands import (
    discard_for_people,
    publish_approved,
)
from airflow_provider_raydatallm.processor.store.versions import commit_name
from tests.support.counting_model import CountingModel
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run

N = 20
HOLD = [{"of": "rows", "then": "hold"}]
OF_TRUNCATED = [{"of": "truncated", "max": 0.3, "then": "hold"}]


class KilledError(BaseException):
    pass


@pytest.fixture
def model() -> CountingModel:
    """Cuts half of the answers, at first."""
    model = CountingModel(lambda n: n < 10)
    model.fails = lambda n: False
    return model


@pytest.fixture
def free(tmp_path: Path) -> SliceJob:
    """Without gates. Whatever changes is published."""
    (tmp_path / "in").mkdir()
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{n}",
        rerun__on_input_change="recompute", rerun__on_config_change="recompute",
    )  # fmt: skip
    add(job, *range(N))
    return job


def add(job: SliceJob, *rows: int) -> Path:
    path = Path(job.input_path, f"{rows[0]}.parquet")
    pq.write_table(pa.table({"n": rows}), path)
    return path


def held(job: SliceJob, cluster: InProcess, gates: list[dict[str, Any]] = HOLD, **leaves: Any) -> str:
    return str(run(changed(job, quality__gates=gates, **leaves), cluster).staged_version)


def force(job: SliceJob, cluster: InProcess) -> None:
    assert run(changed(job, rerun__force=True), cluster).outcome == "published"


def force_and_die(job: SliceJob, cluster: InProcess) -> None:
    """Right before the commit."""

    def die(*args: Any) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "_create", die)
        with pytest.raises(KilledError):
            force(job, cluster)


def published(job: SliceJob) -> dict[int, str]:
    rows = pq.read_table(job.slice_path, partitioning=None).to_pylist()
    return {row["n"]: row["answer"] for row in rows}


def test_force_asks_all_rows_also_where_new_files_would_be_added(
    free: SliceJob, model: CountingModel
) -> None:
    cluster = InProcess(answer=model)
    run(free, cluster)
    add(free, 100)
    force(changed(free, rerun__on_input_change="extend"), cluster)
    assert cluster.answered == 2 * N + 1


def test_forced_version_over_more_files_is_not_taken_for_one_that_died_before_its_commit(
    free: SliceJob, model: CountingModel, tmp_path: Path
) -> None:
    """Whose epoch comes again, once the leases are lost."""
    cluster = InProcess(answer=model)
    more = add(free, 100, 101)
    held(free, cluster)
    more.rename(tmp_path / "away")
    held(free, cluster, rerun__force=True)
    force_and_die(free, cluster)
    shutil.rmtree(Path(free.paths.metadata) / "lease")
    (tmp_path / "away").rename(more)
    force(free, cluster)
    assert set(published(free).values()) <= {
        f"{n}, asked {times}" for n in (*range(N), 100, 101) for times in (2, 3)
    }
    add(free, 102)
    run(free, cluster)
    assert "asked 1" not in "".join(answer for n, answer in published(free).items() if n != 102)


def test_rows_count_that_a_run_answers_after_the_leases_are_lost(
    free: SliceJob, model: CountingModel
) -> None:
    cluster = InProcess(answer=model)
    discard_for_people(free.address, held(free, cluster))
    held(free, cluster, rerun__force=True)
    force_and_die(free, cluster)
    shutil.rmtree(Path(free.paths.metadata) / "lease")
    add(free, 100)
    assert run(free, cluster).outcome == "published"


def test_forced_version_without_rows_sets_no_answer_aside(
    free: SliceJob, model: CountingModel, tmp_path: Path
) -> None:
    cluster = InProcess(answer=model)
    empty = changed(free, source__on_empty="publish")
    held(empty, cluster)
    Path(free.input_path, "0.parquet").rename(tmp_path / "away")
    nothing = Path(free.input_path, "empty.parquet")
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), nothing)
    assert run(changed(empty, rerun__force=True), cluster).outcome == "empty"
    nothing.unlink()
    (tmp_path / "away").rename(Path(free.input_path, "0.parquet"))
    assert run(empty, cluster).counts.succeeded == N
    assert cluster.answered == N


@pytest.mark.parametrize("publish", ["by a person", "by a run"])
def test_rows_count_that_were_answered_after_all_were_asked_again(
    free: SliceJob, model: CountingModel, publish: str
) -> None:
    """Half of them before, and the other half while the forced version waits for a person."""
    cluster = InProcess(answer=model)
    batches: list[pa.Table] = []

    def die(batch: pa.Table) -> None:
        batches.append(batch)
        if len(batches) == 2:
            raise KilledError

    cluster.before_batch = die
    with pytest.raises(KilledError):
        run(free, cluster)
    cluster.before_batch = lambda batch: None
    name = held(free, cluster, rerun__force=True)
    asked = cluster.answered
    held(free, cluster)
    late = cluster.answered - asked
    assert 0 < late < N
    if publish == "by a person":
        publish_approved(changed(free, quality__gates=HOLD), name)
    else:
        force(free, cluster)
    add(free, 100)
    asked = cluster.answered
    run(free, cluster)
    assert cluster.answered - asked == N - late + 1


def test_rejection_is_settled_once_all_its_rows_were_asked_again(
    free: SliceJob, model: CountingModel
) -> None:
    cluster = InProcess(answer=model)
    discard_for_people(free.address, held(free, cluster, OF_TRUNCATED))
    model.cuts = lambda n: False
    gated = changed(free, quality__gates=OF_TRUNCATED)
    force(gated, cluster)
    add(free, 100)
    assert run(gated, cluster).outcome == "published"


def test_repeated_rows_of_before_count_for_nothing(free: SliceJob, model: CountingModel) -> None:
    cluster = InProcess(answer=model)
    repeated = changed(free, quality__repeat=5)
    held(repeated, cluster)
    force(repeated, cluster)
    add(free, 100)
    asked = sum(model.asked.values())
    run(repeated, cluster)
    assert sum(model.asked.values()) - asked == N + 1 + 5


def test_forced_run_that_dies_before_its_commit_sets_no_paid_answer_aside(
    free: SliceJob, model: CountingModel
) -> None:
    """Whose author does without it then; nor does it settle a Reject of those answers."""
    cluster = InProcess(answer=model)
    discard_for_people(free.address, held(free, cluster, OF_TRUNCATED))
    force_and_die(free, cluster)
    asked = cluster.answered
    lenient = [{"of": "truncated", "max": 1, "then": "hold"}]
    assert run(changed(free, quality__gates=lenient), cluster).outcome == "held"
    assert run(free, cluster).outcome == "published"
    assert cluster.answered == asked


@pytest.mark.parametrize("publish", ["forced", "approved"])
def test_rejection_is_not_settled_by_another_reading_of_the_same_files(
    free: SliceJob, model: CountingModel, publish: str
) -> None:
    Path(free.input_path, "0.parquet").unlink()
    Path(free.input_path, "0.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(N)))
    cluster = InProcess(answer=model)
    as_text = changed(free, publish__on_schema_change="accept")
    as_numbers = changed(as_text, source__column_types={"n": "int64"})
    discard_for_people(free.address, held(as_text, cluster))
    name = held(as_numbers, cluster)
    if publish == "forced":
        force(as_numbers, cluster)
    else:
        held(as_numbers, cluster, publish__details=["attempts"])
        publish_approved(changed(as_numbers, quality__gates=HOLD), name)
    lenient = [{"of": "truncated", "max": 1, "then": "hold"}]
    assert run(changed(as_text, quality__gates=lenient), cluster).outcome == "held"


def test_answers_from_before_a_forced_version_do_not_come_back_with_its_damaged_commit(
    free: SliceJob, model: CountingModel
) -> None:
    """Nobody knows whether it was committed."""
    cluster = InProcess(answer=model)
    held(free, cluster)
    force(free, cluster)
    assert run(changed(free, prompt="{n} "), cluster).published_version == 2
    Path(free.paths.metadata, commit_name(1)).write_text("{")
    assert run(free, cluster).published_version == 3
    assert {answer.rpartition(" ")[2] for answer in published(free).values()} == {"4"}
