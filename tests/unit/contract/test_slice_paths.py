"""Where a slice's files lie: the table's folders hold its rows, and everything else lies beside the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths, check_folders_above, slice_paths
from tests.support.slice_jobs import slice_job


def paths(**given: Any) -> SlicePaths:
    return slice_job(**given).paths


@pytest.mark.parametrize(("given", "table", "metadata", "quarantine"), [
    ({"output_path": "s3://lake/out/"}, "s3://lake/out/ds=2026-01-31", "s3://lake/out.ray_llm/ds=2026-01-31",
     "s3://lake/out.quarantine/ds=2026-01-31"),
    ({"output_path": "/out/day={slice}"}, "/out/day=2026-01-31", "/out.ray_llm/day=2026-01-31",
     "/out.quarantine/day=2026-01-31"),
    ({"output_path": "/lake/{slice}/answers"}, "/lake/2026-01-31/answers", "/lake/2026-01-31.ray_llm/answers",
     "/lake/2026-01-31.quarantine/answers"),
    ({"output_path": "/out", "source__max_rows": 7}, "/out.trial/first-7/ds=2026-01-31",
     "/out.trial/first-7.ray_llm/ds=2026-01-31", "/out.trial/first-7.quarantine/ds=2026-01-31"),
    ({"output_path": "/out", "source__max_rows": 7, "source__trial": "j.doe@x"},
     "/out.trial/j.doe@x/ds=2026-01-31", "/out.trial/j.doe@x.ray_llm/ds=2026-01-31",
     "/out.trial/j.doe@x.quarantine/ds=2026-01-31"),
    ({"output_path": "/out", "source__max_rows": 7, "source__trial": "Jürgen Doe"},
     "/out.trial/Jürgen Doe/ds=2026-01-31", "/out.trial/Jürgen Doe.ray_llm/ds=2026-01-31",
     "/out.trial/Jürgen Doe.quarantine/ds=2026-01-31"),
    ({"output_path": "/out", "source__trial": "mine"}, "/out/ds=2026-01-31", "/out.ray_llm/ds=2026-01-31",
     "/out.quarantine/ds=2026-01-31"),
    ({"output_path": "/out", "publish__metadata_path": "/meta/"}, "/out/ds=2026-01-31", "/meta/ds=2026-01-31",
     "/out.quarantine/ds=2026-01-31"),
    ({"output_path": "/out", "publish__quarantine_path": "s3://lake/bad"}, "/out/ds=2026-01-31",
     "/out.ray_llm/ds=2026-01-31", "s3://lake/bad/ds=2026-01-31"),
    ({"output_path": "/out", "source__max_rows": 7, "publish__metadata_path": "/meta",
      "publish__quarantine_path": "/bad"},
     "/out.trial/first-7/ds=2026-01-31", "/out.trial/first-7.ray_llm/ds=2026-01-31",
     "/out.trial/first-7.quarantine/ds=2026-01-31"),
])  # fmt: skip
def test_metadata_and_quarantine_lie_beside_the_table_or_where_they_are_put(
    given: dict[str, Any], table: str, metadata: str, quarantine: str
) -> None:
    found = paths(**given)
    assert (found.table, found.metadata, found.quarantine) == (table, metadata, quarantine)
    assert found.report(3) == f"{metadata}/reports/report-000003.json"


def test_staged_files_stay_on_the_tables_storage_wherever_the_metadata_lies() -> None:
    assert paths(output_path="s3://lake/out", publish__metadata_path="/meta").staging == paths().staging


def test_reader_finds_a_slice_by_its_folder_alone() -> None:
    assert slice_paths("s3://lake/out/ds=2026-01-31/") == paths()


@pytest.mark.parametrize(
    "output_path", ["s3://lake", "s3://lake/", "s3://lake/{slice}", "/", "/{slice}", "file:///{slice}"]
)
def test_table_without_a_place_beside_it_is_refused(output_path: str) -> None:
    with pytest.raises(pydantic.ValidationError, match="root of a bucket or disk"):
        slice_job(output_path=output_path)


@pytest.mark.parametrize("output_path", ["/lake/out/.", "/lake/out/./", "/lake/out/./{slice}"])
def test_table_whose_name_is_a_dot_is_refused(output_path: str) -> None:
    with pytest.raises(pydantic.ValidationError, match="give the folder itself"):
        slice_job(output_path=output_path)


def test_folder_of_a_bucket_or_disk_is_enough() -> None:
    assert paths(output_path="s3://lake/out/{slice}").metadata == "s3://lake/out.ray_llm/2026-01-31"
    assert paths(output_path="/out").metadata == "/out.ray_llm/ds=2026-01-31"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"publish__metadata_path": "meta"}, "metadata_path is 'meta': give the folder of the whole table"),
        ({"publish__quarantine_path": "/bad/{slice}"}, "without {slice}"),
        ({"publish__metadata_path": "s3://lake/out/meta"}, "lies inside the table s3://lake/out/"),
        ({"publish__quarantine_path": "s3://lake/out"}, "lies inside the table"),
        ({"publish__quarantine_path": "s3a://lake/out/bad"}, "lies inside the table"),
        (
            {"output_path": "/lake/out", "publish__quarantine_path": "file:///lake//out/bad"},
            "lies inside the table",
        ),
        (
            {"output_path": "/lake/{slice}/x", "publish__metadata_path": "/meta"},
            "{slice} above its last folder",
        ),
    ],
)
def test_folder_that_would_mix_with_others_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError) as e:
        slice_job(**given)
    assert says in str(e.value)


@pytest.mark.parametrize("folder", ["team=x", "TEAM=y", "te%61m=z"])
@pytest.mark.parametrize("table", ["s3://lake/{}/out", "/lake/{}/a/b", "/lake/{}"])
def test_hive_folder_above_the_table_is_refused_if_a_column_has_its_name(folder: str, table: str) -> None:
    address = table.format(folder)
    with pytest.raises(SliceError, match=rf"column 'Team'.*'{folder}'") as e:
        check_folders_above(address, ["name", "Team"])
    assert e.value.kind == "input"
    check_folders_above(address, ["name", "teams"])


def test_folder_without_a_value_is_no_column() -> None:
    check_folders_above("s3://lake/team/out", ["team"])


def test_readers_show_the_value_of_a_hive_folder_above_the_table(tmp_path: Path) -> None:
    """Which is why it is refused."""
    folder = tmp_path / "team=x" / "out" / "ds=2026-01-31"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"team": ["own"]}), folder / "part.parquet")
    [(team,)] = duckdb.sql(f"select team from '{tmp_path}/team=x/out/**/*.parquet'").fetchall()
    assert team == "x"
