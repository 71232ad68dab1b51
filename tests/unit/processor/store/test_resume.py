"""Plan, subtract, answer, reconcile: on random files and whatever part of them is finished."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS
from airflow_provider_raydatallm.processor.engines.base import EngineGivenUpError
from airflow_provider_raydatallm.processor.input.formats import text
from airflow_provider_raydatallm.processor.input.listing import list_input
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, CheckpointState
from airflow_provider_raydatallm.processor.store.fragments import put_fragment
from tests.support.in_process import InProcess, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import answers, newest, shown
from tests.support.stub_engine import StubEngine

#: A hash of types.
TYPES = "0123456789abcdef"


def checkpoint_of(job: SliceJob) -> Checkpoint:
    return Checkpoint(Store(job.paths.metadata), answers_fingerprint(job))


def finish(job: SliceJob, plan: Plan, rows: list[tuple[int, int]], kind: Any = "rows") -> None:
    """Put a fragment of rows (unit index, offset), as an earlier run would have."""
    table = pa.table({
        "__unit": pa.array([u for u, _ in rows], pa.int32()),
        "__offset": pa.array([o for _, o in rows], pa.int64()),
    })  # fmt: skip
    if kind == "rows":
        table = table.append_column("answer", pa.array([f"kept {u} {o}" for u, o in rows], pa.string()))
        for field in COUNT_FIELDS:
            table = table.append_column(field, pa.array([1] * len(rows), pa.int64()))
    elif kind == "failed":
        for name in ("error_type", "error"):
            table = table.append_column(name, pa.array(["X"] * len(rows), pa.string()))
    checkpoint = checkpoint_of(job)
    put_fragment(checkpoint.store, checkpoint.folder, kind, table, [u.id for u in plan.units], 1)


def write_input(folder: Path, kind: str, sizes: list[int], rng: random.Random) -> list[str]:
    """Files of rows whose `name` tells which row it is; returns the names in input order."""
    texts: list[str] = []
    for number, size in enumerate(sizes):
        names = [f'{number}-{i} "q", é{chr(10) * rng.randint(0, 1)}x' for i in range(size)]
        texts += names
        if kind == "parquet":
            table = pa.table({"name": pa.array(names, pa.string())})
            pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=rng.randint(1, 12))
        elif kind == "csv":
            buffer = io.StringIO()
            csv.writer(buffer, lineterminator="\n").writerows([["name"], *[[n] for n in names]])
            (folder / f"{number:03}.csv").write_text(buffer.getvalue())
        else:
            lines = "".join(json.dumps({"name": n}) + "\n" for n in names)
            (folder / f"{number:03}.jsonl").write_text(lines)
    return texts


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["parquet", "csv", "jsonl"]),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any), seed=st.integers(0, 2**32),
    share=st.floats(0, 1), overlap=st.integers(1, 3),
)  # fmt: skip
def test_whatever_is_finished_only_the_rest_is_answered_and_all_is_published_in_order(
    kind: str, sizes: list[int], seed: int, share: float, overlap: int
) -> None:
    rng = random.Random(seed)
    root = Path(tempfile.mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "TEXT_RANGE_BYTES", 64)
        try:
            (root / "in").mkdir()
            names = write_input(root / "in", kind, sizes, rng)
            job = job_of(input_path=f"{root}/in/", output_path=f"{root}/out")
            plan = make_plan(job)
            ids = [(u, o) for u, unit in enumerate(plan.units) for o in range(unit.rows)]
            assert len(ids) == len(names)
            done = {r for r in ids if rng.random() < share}
            for _ in range(overlap):
                some = [r for r in done if rng.random() < 0.7]
                if some:
                    finish(job, plan, rng.sample(some, len(some)))
            if done:
                finish(job, plan, sorted(done))
            cluster = InProcess(batch=rng.randint(1, 9), flush_every=rng.randint(1, 4))
            report = run(job, cluster)
            assert cluster.answered == len(ids) - len(done)
            assert report.counts.planned == report.counts.succeeded == len(ids)
            assert report.counts.resumed == len(done)
            table = pq.read_table(job.slice_path, partitioning=None)
            assert table.column("name").to_pylist() == names
            assert table.column("answer").to_pylist() == [
                f"kept {u} {o}" if (u, o) in done else name for (u, o), name in zip(ids, names, strict=True)
            ]
        finally:
            shutil.rmtree(root)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    table = pa.table({"name": [f"n{i}" for i in range(100)]})
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=30)
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality__max_quarantine=1)


def test_plan_that_was_stored_is_the_plan_that_was_made(job: SliceJob, tmp_path: Path) -> None:
    plan = make_plan(job)
    checkpoint = checkpoint_of(job)
    checkpoint.save_plan(plan, TYPES, {})
    loaded = checkpoint.load_plan(list_input(job), TYPES)
    assert loaded == plan
    assert loaded is not None
    assert [u.id for u in loaded.units] == [u.id for u in plan.units]


def test_run_that_dies_leaves_its_finished_rows_to_the_next(job: SliceJob) -> None:
    def die(batch: pa.Table) -> None:
        if batch.column("__offset")[0].as_py() == 20 and batch.column("__unit")[0].as_py() == 2:
            raise RuntimeError("the engine died")

    first, second = InProcess(before_batch=die), InProcess()
    with pytest.raises(RuntimeError):
        run(job, first)
    assert first.answered == 80
    report = run(job, second)
    assert second.answered == 20
    assert report.counts.resumed == 80
    assert answers(job) == [f"n{i}" for i in range(100)]


def test_damaged_fragment_is_set_aside_and_its_rows_run_again(
    job: SliceJob, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan(job)
    finish(job, plan, [(0, o) for o in range(30)])
    finish(job, plan, [(1, o) for o in range(30)])
    folder = Path(job.paths.metadata) / checkpoint_of(job).folder
    damaged = sorted(folder.iterdir())[0]
    data = bytearray(damaged.read_bytes())
    data[-20] ^= 0x40
    damaged.write_bytes(bytes(data))
    cluster = InProcess()
    report = run(job, cluster)
    assert cluster.answered == 40 + 30
    assert report.counts.succeeded == 100
    assert "is damaged" in caplog.text
    assert sum(a.startswith("kept") for a in answers(job)) == 30


def test_damaged_fragment_with_holes_is_set_aside_before_anything_runs(job: SliceJob) -> None:
    plan = make_plan(job)
    finish(job, plan, [(0, 1), (0, 3), (2, 5)])
    folder = Path(job.paths.metadata) / checkpoint_of(job).folder
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    cluster = InProcess()
    run(job, cluster)
    assert cluster.answered == 100


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"sha256": "0", "body": {}}'])
def test_damaged_plan_is_set_aside_and_finished_rows_still_count(job: SliceJob, damage: bytes) -> None:
    plan = make_plan(job)
    checkpoint = checkpoint_of(job)
    checkpoint.save_plan(plan, TYPES, {})
    finish(job, plan, [(0, o) for o in range(30)])
    [stored] = (Path(job.paths.metadata) / checkpoint.folder).glob("plan-*.json")
    stored.write_bytes(damage)
    cluster = InProcess()
    assert run(job, cluster).counts.resumed == 30
    assert cluster.answered == 70


def test_rows_that_failed_before_are_not_tried_again_beyond_their_attempts(job: SliceJob) -> None:
    plan = make_plan(job)
    finish(job, plan, [(1, 4), (1, 5)], kind="failed")
    cluster = InProcess()
    report = run(job, cluster)
    assert cluster.answered == 98
    assert (report.counts.succeeded, report.counts.quarantined) == (98, 2)


def test_rows_that_engines_died_of_are_answered_after_all_others(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death leaves no answer: it is no reason to keep the plan, and a version does not count it."""
    plan = make_plan(job)
    for rows in ([(0, 3), (0, 4)], [(0, 4), (2, 1)], [(0, 4), (0, 5), (2, 1), (2, 2)]):
        finish(job, plan, rows, kind="died")
    checkpoint = checkpoint_of(job)
    assert not checkpoint.has_finished_rows()
    finish(job, plan, [(2, 2)])
    assert checkpoint.has_finished_rows()
    state = CheckpointState(plan, checkpoint.read_ledger(plan)[0], max_attempts=1)
    assert [(unit, spans.tolist()) for unit, spans in state.suspects] == [(0, [[4, 5]]), (2, [[1, 2]])]
    state.release_ledger()
    assert (state.missing.rows, state.rows_missing, state.is_finished) == (97, 99, False)
    batches: list[list[tuple[int, int]]] = []

    def note(batch: pa.Table) -> None:
        batches.append(list(zip(*(batch.column(n).to_pylist() for n in ("__unit", "__offset")), strict=True)))

    engines_of_suspects: list[int] = []

    def for_suspects(self: StubEngine, rows: int) -> StubEngine:
        engines_of_suspects.append(rows)
        return self

    monkeypatch.setattr(StubEngine, "for_suspects", for_suspects)
    report = run(job, InProcess(before_batch=note))
    assert engines_of_suspects == [2]
    answered = [row for batch in batches for row in batch]
    assert (len(answered), answered[-2:]) == (99, [(0, 4), (2, 1)])
    assert (report.counts.succeeded, report.counts.resumed) == (100, 1)
    assert newest(job).body["fragments"]["count"] == len(batches) + 1
    assert not checkpoint.store.names(checkpoint.folder)


@pytest.mark.parametrize("is_reason", [True, False], ids=["row", "engine"])
def test_rows_that_an_engine_may_have_died_of_are_tried_alone_before_it_is_given_up(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch, is_reason: bool
) -> None:
    """Else a slice with many such rows, far apart, would fail although all others can be answered."""
    deadly = [(0, 25), (1, 10), (2, 20)]
    monkeypatch.setattr(StubEngine, "for_suspects", lambda self, rows: StubEngine(self.job, rows))

    class Dies(InProcess):
        engines = 0

        def run_inference(self, task: Any, tell: Any) -> None:
            rows = {(unit, o) for unit, spans in task.missing for span in spans for o in range(*span)}
            self.isolates = rows <= set(deadly)
            self.engines += not self.isolates
            if self.isolates and is_reason:
                finish(job, task.inference.plan, sorted(rows), kind="failed")
            else:
                super().run_inference(task, tell)

    def die(batch: pa.Table) -> None:
        rows = zip(*(batch.column(n).to_pylist() for n in ("__unit", "__offset")), strict=True)
        if not cluster.isolates and (held := sorted(set(rows) & set(deadly))):
            for _ in range(2):
                finish(job, make_plan(job), held, kind="died")
            raise EngineGivenUpError("an engine died 4 times", kind="engine")

    cluster = Dies(before_batch=die)
    if is_reason:
        counts = run(job, cluster).counts
        assert (counts.succeeded, counts.quarantined, cluster.engines) == (97, 3, 4)
    else:
        with pytest.raises(EngineGivenUpError, match="an engine died 4 times"):
            run(job, cluster)
        assert cluster.engines == 1


def test_engine_that_loses_rows_is_told_not_asked_for_ever(job: SliceJob) -> None:
    class Forgets(InProcess):
        def run_inference(self, task: Any, tell: Any) -> None:
            pass

    with pytest.raises(
        SliceError, match=r"100 row\(s\) came back from the engine neither answered nor failed"
    ):
        run(job, Forgets())
    assert shown(job) == set()


def test_rows_that_a_dying_writer_lost_run_again_in_the_same_run(job: SliceJob) -> None:
    """A writer is started again by Ray, without the rows that it had not put yet."""

    class LosesSome(InProcess):
        def run_inference(self, task: Any, tell: Any) -> None:
            super().run_inference(task, tell)
            folder = Path(task.url) / task.folder
            if self.answered == 100:
                next(iter(sorted(folder.glob("rows-*")))).unlink()

    cluster = LosesSome()
    report = run(job, cluster)
    assert cluster.answered == 110
    assert report.counts.succeeded == 100
    assert answers(job) == [f"n{i}" for i in range(100)]
