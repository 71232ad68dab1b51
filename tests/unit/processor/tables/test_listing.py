from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.processor.storage.probe import PROBE
from airflow_provider_raydatallm.processor.tables.listing import find_slices
from airflow_provider_raydatallm.processor.tables.slice_state import read_states
from tests.support.in_process import changed, job_of, run_in_process
from tests.support.marks import long
from tests.support.s3_dialect import Dialect


@pytest.mark.slow
@pytest.mark.parametrize("folder", [long(""), long("/{slice}"), "/day={slice}/rows"])
def test_slices_of_a_table_in_an_object_store(dialect: Dialect, tmp_path: Path, folder: str) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    output = f"s3://lake/{uuid.uuid4().hex}{folder}"
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=output)
    keys = ["2026-01-01", "2026-01-02T05+0100", "a b/c%"]
    for key in keys:
        run_in_process(changed(job, slice_key=key))
    states = list(read_states(find_slices(output)))
    assert [(s.key, s.version, s.run) for s in states] == [(key, 1, None) for key in keys]
    assert list(find_slices("s3://lake/of-nobody/at-all")) == []


def test_what_is_no_slice_is_not_listed(tmp_path: Path) -> None:
    for name in ("2026-01-01", f"{PROBE}1f"):
        (tmp_path / "day.ray_llm" / name).mkdir(parents=True)
    (tmp_path / "day.ray_llm" / "store-ok.json").write_text("{}")
    assert [key for key, _ in find_slices(f"{tmp_path}/day/{{slice}}")] == ["2026-01-01"]


@pytest.mark.parametrize("folder", ["any-slice-key", "any-trial-name", "*", "[ab]"])
def test_listing_of_a_table_shows_no_other_ones(tmp_path: Path, folder: str) -> None:
    for name in ("a", folder):
        (tmp_path / name / f"out{folder}.ray_llm" / "ds=2026-01-01").mkdir(parents=True)
    [(key, folders)] = find_slices(f"{tmp_path}/{folder}/out{folder}")
    assert (key, folders.metadata.root) == (
        "2026-01-01", f"{tmp_path}/{folder}/out{folder}.ray_llm/ds=2026-01-01",
    )  # fmt: skip


def test_key_is_the_same_wherever_it_stands(tmp_path: Path) -> None:
    for folder in ("1/day=1.ray_llm/rows", "1/day=2.ray_llm/rows", "2/day=2.ray_llm/other"):
        (tmp_path / folder).mkdir(parents=True)
    assert [key for key, _ in find_slices(f"{tmp_path}/{{slice}}/day={{slice}}/rows")] == ["1"]
