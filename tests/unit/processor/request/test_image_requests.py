"""Images on their way from a table to requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.formats import parquet_batches
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.media.cells import MediaFile, from_array
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from tests.support.in_process import job_of, run_in_process
from tests.support.slice_jobs import slice_job

OF_PHOTOS = slice_job(images__column="photo").task.media
PHOTOS = [b"a" * 500, None, b"c" * 500, b"d" * 500]


def plan_of(folder: Path, **fields: Any) -> Plan:
    table = pa.table({"n": range(len(PHOTOS)), "photo": pa.array(PHOTOS, pa.binary())})
    pq.write_table(table, folder / "in.parquet")
    return make_plan(job_of(input_path=f"{folder}/in.parquet", output_path="/out", **fields))


@pytest.mark.parametrize("columns", [None, ("n",)])
def test_rows_bring_their_images_whether_the_table_keeps_them_or_not(
    tmp_path: Path, columns: tuple[str, ...] | None
) -> None:
    plan = plan_of(tmp_path, columns=columns, images__column="photo")
    builder = RequestBuilder(plan.columns, prompt="Row {n}", media=OF_PHOTOS)
    assert builder.columns == ["n", "photo"]
    reader = RequestReader(plan, builder, carry_row=True)
    [(requests, failed)] = reader(0, np.array([[0, 4]], np.int32))
    assert from_array(requests.column("__files")) == [[MediaFile(b * 500)] for b in (b"a", b"c", b"d")]
    assert requests.column("__offset").to_pylist() == [0, 2, 3]
    assert [json.loads(row) for row in requests.column("__row").to_pylist()] == [{"n": n} for n in (0, 2, 3)]
    assert failed.column("error").to_pylist() == ["column 'photo' holds no image: None"]
    assert failed.column("error_type").to_pylist() == ["InvalidRequest"]


def test_preprocess_writes_the_prompt_and_the_column_brings_the_images(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, columns=("n",), images__column="photo")
    builder = RequestBuilder(
        plan.columns, prompt=None, preprocess=lambda row: f"no. {row['n']}", media=OF_PHOTOS
    )
    [(requests, _)] = RequestReader(plan, builder, carry_row=False)(0, np.array([[2, 3]], np.int32))
    [request] = map(json.loads, requests.column("__request").to_pylist())
    assert request["messages"] == [{"role": "user", "content": "no. 2"}]
    assert from_array(requests.column("__files")) == [[MediaFile(b"c" * 500)]]


def test_large_rows_are_read_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    monkeypatch.setattr(parquet_batches, "TABLE_BYTES", 1000)
    [unit] = plan.units
    read = [table.num_rows for table in plan.read(unit, ["n", "photo"])]
    assert (sum(read), max(read) <= 2) == (4, True)
    assert [table.num_rows for table in plan.read(unit, ["n"])] == [4]


def test_column_that_holds_no_images_fails_the_slice_before_an_engine_starts(tmp_path: Path) -> None:
    plan_of(tmp_path)
    job = job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", prompt="x", images__column="n"
    )
    with pytest.raises(
        SliceError, match=r"images\.column names 'n', of type int64: images are bytes"
    ) as refused:
        run_in_process(job)
    assert refused.value.kind == "input"


def test_engine_that_shows_no_images_is_refused(tmp_path: Path) -> None:
    plan_of(tmp_path)
    job = job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", prompt="x", images__column="photo"
    )
    with pytest.raises(SliceError, match="images needs engine 'vllm', and this slice's engine is"):
        run_in_process(job)
