"""A disk that is mounted in a table's folder later is seen before a row is paid for."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.disk import mount_point
from tests.support.in_process import InProcess, changed, job_of, run_in_process

MEMORY = Path("/dev/shm")


@pytest.fixture
def other_disk() -> Iterator[Path]:
    if mount_point(MEMORY) == mount_point(Path("/tmp")):
        pytest.skip("/dev/shm is no file system of its own here")
    folder = MEMORY / uuid.uuid4().hex
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["out", "out.ray_llm", "out.quarantine"])
def test_folder_that_is_on_another_disk_now_is_refused_before_a_row_is_paid(
    tmp_path: Path, other_disk: Path, name: str
) -> None:
    (tmp_path / "a.csv").write_text("name\na\nfail\n")
    job = job_of(input_path=f"{tmp_path}/a.csv", output_path=f"{tmp_path}/out", quality__max_quarantine=1)
    run_in_process(changed(job, slice_key="2026-01-30"))
    if (tmp_path / name).exists():
        shutil.copytree(tmp_path / name, other_disk, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / name)
    (tmp_path / name).symlink_to(other_disk)
    cluster = InProcess()
    with pytest.raises(SliceError, match=f"mounted at .*{MEMORY}") as e:
        run_in_process(job, cluster)
    assert (e.value.kind, cluster.answered) == ("input", 0)
    assert all(path in str(e.value) for path in (f"{tmp_path}/out.ray_llm", f"{tmp_path}/{name}"))


def test_mount_point_of_what_does_not_exist_yet_is_that_of_the_folder_above(tmp_path: Path) -> None:
    assert mount_point(tmp_path / "a" / "b") == mount_point(tmp_path)
    assert mount_point(Path("/")) == Path("/")
