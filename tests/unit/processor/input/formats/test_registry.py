"""A file's format is that of its extension; the error for another one says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.survey import make_plan
from tests.support.in_process import job_of


@pytest.mark.parametrize(("name", "says"), [
    ("a.avro", "is Avro, which is not read. Write the input as Parquet"), ("a.snappy.avro", "is Avro"),
    ("a.xlsx", "is Excel"), ("a.zip", "is ZIP"), ("a.txt", "unknown file extension '.txt'. Set source"),
    ("a", "unknown file extension ''"), ("a.gz", "unknown file extension ''"),
])  # fmt: skip
def test_unknown_extension_is_named_with_what_to_do(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "0.csv").write_text("x\n1\n")
    (tmp_path / name).write_text("x\n1\n")
    with pytest.raises(SliceError) as e:
        make_plan(job_of(input_path=str(tmp_path), output_path="/o"))
    assert e.value.kind == "input"
    assert str(e.value).startswith(f"{tmp_path}/{name} ")
    assert says in str(e.value)


@pytest.mark.parametrize(("name", "given"), [
    ("a.tsv", {}), ("a.TAB", {}), ("a.txt", {"source__format": "csv", "source__csv": {"delimiter": "\t"}}),
])  # fmt: skip
def test_columns_between_tabs_are_read(tmp_path: Path, name: str, given: dict[str, Any]) -> None:
    (tmp_path / name).write_text("x\ty\n1\t2,3\n")
    [unit] = (plan := make_plan(job_of(input_path=str(tmp_path), output_path="/o", **given))).units
    assert [t.to_pylist() for t in plan.read(unit)] == [[{"x": "1", "y": "2,3"}]]


def test_delimiter_that_is_set_holds_whatever_the_extension(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x;y\n1;2\n")
    given = {"source__csv": {"delimiter": ";"}}
    [unit] = (plan := make_plan(job_of(input_path=str(tmp_path), output_path="/o", **given))).units
    assert [t.to_pylist() for t in plan.read(unit)] == [[{"x": "1", "y": "2"}]]


def test_files_of_commas_and_of_tabs_are_several_formats(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\ty\n1\t2\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    with pytest.raises(SliceError, match="files of several formats"):
        make_plan(job_of(input_path=str(tmp_path), output_path="/o"))
