"""What an adapter's content decides for a slice: its requests, and which rows count after it was replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.adapters.slice_adapters import read_adapters
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import is_deterministic, request_key
from tests.support.adapters import write_adapter
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import newest


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SliceJob:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    names = ["a", "b", None, "", "c"] * 4
    pq.write_table(pa.table({"x": ["same"] * 20, "tenant": names}), tmp_path / "in" / "1.parquet")
    write_adapter(tmp_path / "a")
    write_adapter(tmp_path / "b", lora_alpha=9)
    return job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{x}", engine="vllm",
        sampling_params={"temperature": 0}, quality__max_quarantine=0.7,
    )  # fmt: skip


def by_row(job: SliceJob, tmp_path: Path, adapter_column: str = "tenant", **fields: Any) -> SliceJob:
    paths = {name: str(tmp_path / name) for name in "ab"}
    return changed(job, adapter__paths=paths, adapter__column=adapter_column, **fields)


def test_requests_name_the_content_of_the_rows_adapter(job: SliceJob, tmp_path: Path) -> None:
    asked: list[str] = []
    cluster = InProcess(before_batch=lambda batch: asked.extend(batch.column("__request").to_pylist()))
    with_adapters = by_row(job, tmp_path, adapter__on_null="base")
    report = run(with_adapters, cluster)
    assert (report.counts.succeeded, report.counts.quarantined) == (16, 4)
    a, b = (adapter.digest for adapter in read_adapters(with_adapters).by_name.values())
    assert [json.loads(request).get("adapter") for request in asked] == [a, b, None, None] * 4
    # Identical requests run once, and share an answer with other slices: not with another adapter.
    assert len({request_key(request) for request in asked}) == 3
    assert all(map(is_deterministic, asked))
    failed = pq.read_table(f"{job.paths.quarantine}").to_pylist()
    assert {row["tenant"] for row in failed} == {"c"}
    assert "column 'tenant' names an adapter that adapter.paths does not have: 'c'" in failed[0]["__error"]


def test_row_without_a_name_is_quarantined_unless_the_model_may_answer_it(
    job: SliceJob, tmp_path: Path
) -> None:
    report = run(by_row(job, tmp_path))
    assert (report.counts.succeeded, report.counts.quarantined) == (8, 12)
    errors = {row["tenant"]: row["__error"] for row in pq.read_table(job.paths.quarantine).to_pylist()}
    assert "adapter.on_null='base'" in errors[None]


def test_one_adapter_answers_all_rows(job: SliceJob, tmp_path: Path) -> None:
    asked: list[str] = []
    cluster = InProcess(before_batch=lambda batch: asked.extend(batch.column("__request").to_pylist()))
    run(changed(job, adapter__path=str(tmp_path / "a")), cluster)
    [adapter] = read_adapters(changed(job, adapter__path=str(tmp_path / "a"))).by_name.values()
    assert {json.loads(request)["adapter"] for request in asked} == {adapter.digest}
    assert len(asked) == 20


def test_half_finished_slice_keeps_no_row_of_an_adapter_that_was_replaced(
    job: SliceJob, tmp_path: Path
) -> None:
    job = changed(job, adapter__path=str(tmp_path / "a"))

    def die(batch: pa.Table) -> None:
        if killed.answered == 10:
            raise RuntimeError("killed")

    killed = InProcess(batch=10, before_batch=die)
    with pytest.raises(RuntimeError, match="killed"):
        run(job, killed)
    before = (tmp_path / "a" / "adapter_config.json").read_text()
    write_adapter(tmp_path / "a", lora_alpha=17)
    cluster = InProcess()
    replaced = run(job, cluster)
    assert (cluster.answered, replaced.counts.resumed) == (20, 0)
    assert run(job).outcome == "unchanged"
    (tmp_path / "a" / "adapter_config.json").write_text(before)
    assert run(job).outcome == "unchanged"  # as when a model is replaced in its folder


def test_half_finished_slice_goes_on_with_the_same_content(job: SliceJob, tmp_path: Path) -> None:
    job = changed(job, adapter__path=str(tmp_path / "a"))

    def die(batch: pa.Table) -> None:
        if killed.answered == 10:
            raise RuntimeError("killed")

    killed = InProcess(batch=10, before_batch=die)
    with pytest.raises(RuntimeError, match="killed"):
        run(job, killed)
    write_adapter(tmp_path / "a")  # other times, the same content
    assert run(job).counts.resumed == 10


def test_rows_of_an_adapter_and_of_what_replaced_it_are_not_published_together(
    job: SliceJob, tmp_path: Path
) -> None:
    job = changed(job, adapter__path=str(tmp_path / "a"))
    run(job)
    pq.write_table(pa.table({"x": ["new"], "tenant": ["a"]}), tmp_path / "in" / "2.parquet")
    extended = changed(job, rerun__on_input_change="extend")
    same = InProcess()
    run(extended, same)
    assert same.answered == 1
    write_adapter(tmp_path / "a", lora_alpha=17)
    pq.write_table(pa.table({"x": ["newer"], "tenant": ["a"]}), tmp_path / "in" / "3.parquet")
    with pytest.raises(SliceError, match="answered with an adapter that was replaced in its folder"):
        run(extended)
    cluster = InProcess()
    run(changed(extended, rerun__on_config_change="recompute"), cluster)
    assert (cluster.answered, newest(job).number) == (22, 3)


def test_adapter_that_does_not_fit_is_refused_by_name_before_an_engine_starts(
    job: SliceJob, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "b", r=600)
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"adapter 'b' \(.*/b\) cannot be used: .*600") as e:
        run(by_row(job, tmp_path), cluster)
    assert (e.value.kind, cluster.answered) == ("input", 0)


def test_column_that_the_input_lacks_is_refused(job: SliceJob, tmp_path: Path) -> None:
    with pytest.raises(SliceError, match=r"adapter\.column is 'customer', which the input does not have"):
        run(by_row(job, tmp_path, adapter_column="customer"))
