from __future__ import annotations

import logging
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.task.wanted_slice import WantedSlice
from tests.support.in_process import job_of, run_in_process
from tests.support.slice_files import folders_of, newest
from tests.support.slice_jobs import changed

LOG = logging.getLogger(__name__)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": [*"abcdefghi", "fail"]}), tmp_path / "in.parquet")
    return job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out")


@pytest.mark.parametrize(
    ("min_rows", "max_quarantine", "is_enough"),
    [(0, 1.0, True), (9, 0.1, True), (10, 1.0, False), (0, 0.09, False)],
)
def test_slice_counts_once_it_is_published_with_enough(
    job: SliceJob, min_rows: int, max_quarantine: float, is_enough: bool
) -> None:
    wanted = WantedSlice(job.slice_path, None, min_rows, max_quarantine)
    assert wanted.look(LOG) is None
    run_in_process(job)
    report = wanted.look(LOG)
    assert (report is not None) is is_enough
    if report is not None:
        assert (report["counts"]["succeeded"], report["counts"]["quarantined"]) == (9, 1)


def test_share_that_is_allowed_is_not_too_much_by_a_rounding(job: SliceJob) -> None:
    pq.write_table(pa.table({"name": ["fail"] * 29 + ["a"] * 71}), job.input_path)
    run_in_process(changed(job, quality__max_quarantine=0.5))
    assert WantedSlice(job.slice_path, max_quarantine=0.29).look(LOG) is not None  # 0.29 * 100 < 29


def test_version_that_its_folder_does_not_show_yet_is_not_there(job: SliceJob) -> None:
    run_in_process(job)
    (Path(job.slice_path) / "_SUCCESS").unlink()
    assert WantedSlice(job.slice_path).look(LOG) is None


def test_storage_that_is_away_is_waited_for_and_a_wrong_table_is_not(
    job: SliceJob, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = f"{job.output_path}.elsewhere"
    run_in_process(changed(job, publish__metadata_path=elsewhere))
    commits = Path(elsewhere) / Path(job.slice_path).name / "commits"
    other = job.slice_path.replace("/out/", "/other/")
    with pytest.raises(SliceError, match="holds the metadata of"):
        WantedSlice(other, elsewhere).look(LOG)
    commits.rename(commits.with_name("hidden"))
    commits.write_text("a file where a folder is expected")
    assert WantedSlice(job.slice_path, elsewhere).look(LOG) is None


def test_report_of_a_newer_provider_and_a_missing_package_are_not_waited_for(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_process(job)
    version = newest(job)
    version.body["report"]["what_is_new"] = 1
    store = folders_of(job).metadata
    store.put_document("commits/commit-000001.json", version.body | {"provider_version": "9.0"})
    with pytest.raises(SliceError, match=r"by version 9\.0 of the provider, .*Upgrade the provider here"):
        WantedSlice(job.slice_path).look(LOG)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SliceError, match="gcsfs"):
        WantedSlice("gs://lake/out/ds=2026-01-31").look(LOG)


def test_metadata_that_lies_elsewhere_is_asked_for(job: SliceJob, caplog: pytest.LogCaptureFixture) -> None:
    run_in_process(changed(job, publish__metadata_path=f"{job.output_path}.elsewhere"))
    with caplog.at_level("INFO"):
        assert WantedSlice(job.slice_path).look(LOG) is None
    assert "give the metadata path that the publishing task has" in caplog.text
