"""An input that holds the task's output is refused before a row is paid, however both are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.own_folders import check_output_is_outside
from tests.support.in_process import InProcess, changed, job_of, run_in_process


@pytest.mark.parametrize(("input_path", "output"), [
    ("s3://lake/c/in", "s3a://lake/c/in/out/{slice}"), ("s3a://lake/c/in/", "s3://lake/c/in/out"),
    ("s3://lake/c/in", "s3://lake/c/in"), ("s3:///lake/c", "s3://lake/c/in/out/"),
    ("gcs://lake/in", "gs://lake/in/out"), ("az://c/in", "abfss://c/in/out"),
    ("/lake/in", "file:///lake/in/out"), ("file:/lake/in", "/lake//in/out"), ("//lake/./in/", "/lake/in/out"),
    ("/lake/{slice}/", "/lake/{slice}/out"),
])  # fmt: skip
def test_output_in_its_input_is_refused_however_they_are_written(input_path: str, output: str) -> None:
    with pytest.raises(SliceError, match="lies inside the input") as e:
        check_output_is_outside(job_of(input_path=input_path, output_path=output))
    assert e.value.kind == "input"


@pytest.mark.parametrize("given", [
    {"input_path": "/lake/out.quarantine"}, {"input_path": "/lake/out.trial"},
    {"input_path": "/lake/out.ray_llm/"}, {"input_path": "/lake/out"},
    {"input_path": "/lake/out/ds=2026-01-31"},
    {"input_path": "/lake/out.quarantine/ds=2026-01-31/"},
    {"input_path": "/meta", "publish__metadata_path": "/meta"},
    {"input_path": "/failed", "publish__quarantine_path": "/failed/of/out"},
    {"input_path": "/lake/out.trial/first-5", "source__max_rows": 5},
])  # fmt: skip
def test_none_of_the_tables_folders_may_lie_in_the_input(given: dict[str, str]) -> None:
    with pytest.raises(SliceError, match="lies inside the input"):
        check_output_is_outside(job_of(**{"output_path": "/lake/out", **given}))


@pytest.mark.parametrize(("input_path", "output"), [
    ("/lake/in", "/lake/inner/out"), ("/lake/in", "/lake/out"), ("s3://lake/in", "gs://lake/in/out"),
    ("s3://lake/in", "s3://lake//in/out"), ("/lake/out/ds=2026-01-30", "/lake/out"), ("/lake/*", "/lake/out"),
    ("/lake/out.quarantine/ds=2026-01-30", "/lake/out"), ("/lake/{slice}/in", "/lake/{slice}/out"),
    ("abfs://in@a.dfs.core.windows.net/x", "abfs://in@b.dfs.core.windows.net/x/out"),
])  # fmt: skip
def test_output_beside_its_input_is_accepted(input_path: str, output: str) -> None:
    check_output_is_outside(job_of(input_path=input_path, output_path=output))


@pytest.mark.parametrize("linked", ["input", "output", "relative"])
def test_links_and_relative_paths_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    monkeypatch.chdir(tmp_path)
    paths = {
        "input": (f"{tmp_path}/link", f"{tmp_path}/in/out"),
        "output": (f"{tmp_path}/in", f"{tmp_path}/link/out"),
        "relative": (f"{tmp_path}/in", "in/out"),
    }
    input_path, output = paths[linked]
    with pytest.raises(SliceError, match="lies inside the input"):
        check_output_is_outside(job_of(input_path=input_path, output_path=output))


def test_slice_whose_input_holds_its_output_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("name\na\n")
    cluster = InProcess()
    job = job_of(input_path=f"file://{tmp_path}/in", output_path=f"{tmp_path}//in/out")
    with pytest.raises(SliceError, match="lies inside the input"):
        run_in_process(job, cluster)
    assert cluster.answered == 0
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "a.csv"]


def test_second_day_of_a_pattern_has_its_own_rows_only(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("name\na\nb\nfail\n")
    job = job_of(
        input_path=f"{tmp_path}/**", output_path=f"file://{tmp_path}//out", quality__max_quarantine=1,
        source__format="csv",
    )  # fmt: skip
    for key in ("2026-01-30", "2026-01-31", "2026-02-01"):
        report = run_in_process(changed(job, slice_key=key))
        assert (report.counts.planned, report.counts.succeeded) == (3, 2)
