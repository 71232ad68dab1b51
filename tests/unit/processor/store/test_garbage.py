"""Abandoned checkpoints go, and only they."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import garbage
from airflow_provider_raydatallm.processor.store import lease as lease_module
from airflow_provider_raydatallm.processor.store.lease import Lease
from tests.support.in_process import changed, job_of, run_in_process


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [f"fail {i}" for i in range(30)]}), tmp_path / "in.parquet")
    return job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


def half_finished(job: SliceJob) -> Path:
    with pytest.raises(SliceError, match="max_quarantine_fraction"):
        run_in_process(job)
    return Path(job.slice_path) / "_checkpoint"


def age(folder: Path, days: float) -> None:
    then = time.time() - days * 86400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_old_checkpoints_go_and_young_ones_stay(job: SliceJob) -> None:
    old, young = half_finished(job), half_finished(changed(job, slice_key="2026-02-01"))
    trial = half_finished(changed(job, max_rows=5))
    age(old, 8)
    age(trial, 8)
    found = {store.url for store, _ in garbage.abandoned_checkpoints(job, 7)}
    assert found == {f"file://{p.parent}" for p in (old, trial)}
    for store, days in garbage.abandoned_checkpoints(job, 7):
        assert 7.9 < days < 8.1
        garbage.remove_checkpoint(store)
    assert not old.exists()
    assert not trial.exists()
    assert any(p.suffix == ".arrow" for p in young.rglob("*"))


def test_key_inside_the_path_is_any_key(job: SliceJob, tmp_path: Path) -> None:
    named = changed(job, output_path=f"{tmp_path}/tables/{{slice}}/day={{slice}}")
    folder = half_finished(named)
    age(folder, 8)
    [(store, _)] = garbage.abandoned_checkpoints(changed(named, slice_key="another"), 7)
    garbage.remove_checkpoint(store)
    assert not folder.exists()


def test_checkpoint_whose_run_lives_is_not_abandoned(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.05)
    folder = half_finished(job)
    age(folder, 8)
    store = Store(job.slice_path)
    lease = Lease.acquire(
        store, me="x", published_epoch=lambda: 0, wait=True, stop_waiting=lambda other: False
    )
    assert lease is not None
    try:
        while not store.read(f"{lease_module.CHECKPOINT}/beat-{lease.epoch:06}"):
            time.sleep(0.01)
        assert list(garbage.abandoned_checkpoints(job, 7)) == []
    finally:
        lease.close()


def test_program_says_what_it_would_remove(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = half_finished(job)
    age(folder, 8)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    assert main(["gc", str(tmp_path / "spec.json"), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would remove {folder}, 8.0 days old\n"
    assert folder.exists()
    assert main(["gc", str(tmp_path / "spec.json")]) == 0
    assert capsys.readouterr().out == f"removed {folder}, 8.0 days old\n"
    assert not folder.exists()
