from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Version
from airflow_provider_raydatallm.processor.tables import samples
from tests.support.in_process import job_of, run_in_process


@pytest.fixture
def published(tmp_path: Path) -> tuple[SliceFolders, Version]:
    """Nine rows in three files, two columns of the input each."""
    (tmp_path / "in").mkdir()
    for i in range(3):
        rows = {"name": [f"{i}{j}" for j in range(3)], "other": [i] * 3}
        pq.write_table(pa.table(rows), tmp_path / "in" / f"{i}.parquet")
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", publish__file_per_input=True)
    run_in_process(job)
    folders = SliceFolders.open(job.paths)
    version = versions.newest_version(folders.metadata)
    assert version is not None
    assert len(version.files) == 3
    return folders, version


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 1000])
@pytest.mark.parametrize("rows", [1, 4, 9, 100])
def test_first_rows_come_from_as_many_files_as_needed(
    published: tuple[SliceFolders, Version], monkeypatch: pytest.MonkeyPatch, batch: int, rows: int
) -> None:
    monkeypatch.setattr(samples, "_BATCH_ROWS", batch)
    names, lines = samples.first_rows(*published, rows)
    assert names[:2] == ["name", "other"]
    assert [line["name"] for line in lines] == [f"{i}{j}" for i in range(3) for j in range(3)][:rows]


def test_files_that_are_not_needed_stay_closed(
    published: tuple[SliceFolders, Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, version = published
    opened: list[Any] = []
    monkeypatch.setattr(pq, "ParquetFile", lambda f, real=pq.ParquetFile: opened.append(f) or real(f))
    names, lines = samples.first_rows(folders, version, 3)
    assert (names[0], lines[0]["name"]) == ("name", "00")
    assert len(opened) == 1


def test_value_that_python_lacks_hides_no_row(tmp_path: Path) -> None:
    rows = {
        "name": ["a", "b"], "at": pa.array([2**62, 0], pa.timestamp("us")),
        "day": pa.array([0, 2**30], pa.date32()),
        "deep": pa.array([[2**62], [0]], pa.list_(pa.timestamp("us"))),
    }  # fmt: skip
    pq.write_table(pa.table(rows), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")
    run_in_process(job)
    folders = SliceFolders.open(job.paths)
    version = versions.newest_version(folders.metadata)
    assert version is not None
    _, lines = samples.first_rows(folders, version, 2)
    assert [line["name"] for line in lines] == ["a", "b"]
    assert [str(line["at"]) for line in lines] == [
        "<value out of range: 4611686018427387904>",
        "1970-01-01 00:00:00",
    ]
    assert [str(line["day"]) for line in lines] == ["1970-01-01", "<value out of range: 1073741824>"]
    assert "out of range" in lines[0]["deep"]


def test_damaged_file_is_named(published: tuple[SliceFolders, Version]) -> None:
    folders, version = published
    file = Path(folders.table.path(version.files[0].name))
    file.write_bytes(b"no Parquet any more")
    with pytest.raises(SliceError, match=f"{file} is damaged: Parquet magic bytes not found"):
        samples.first_rows(folders, version, 1)
