"""Names of fields below a column may be keys of data: a failure names them only among the rows' texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from tests.support.in_process import job_of, run_in_process

KEY = "key-of-data"
STRUCT = pa.struct([(KEY, pa.int64())])
BIG = "12345678901234567890123"


def parquet(kind: pa.DataType) -> Any:
    def write(folder: Path) -> None:
        pq.write_table(pa.table({"name": ["a"], "b": pa.array([None], kind)}), folder / "a.parquet")

    return write


def json_lines(value: str) -> Any:
    def write(folder: Path) -> None:
        (folder / "a.jsonl").write_text(f'{{"name": "a", "b": {{"{KEY}": {value}}}}}\n')

    return write


@pytest.mark.parametrize(("write", "arguments", "sentence"), [
    pytest.param(json_lines(BIG), {}, "column 'b'", id="big integer"),
    pytest.param(json_lines("{}"), {}, "column 'b' is struct of 1 field", id="empty struct"),
    pytest.param(parquet(STRUCT), {"messages": "b", "prompt": None}, "is struct of 1 field", id="messages"),
    pytest.param(
        parquet(STRUCT), {"source__column": "b"}, "'b' is struct of 1 field", id="column of the slice"
    ),
    pytest.param(parquet(pa.list_(STRUCT)), {"source__column": "b"}, "'b' is list of struct", id="list"),
    pytest.param(parquet(STRUCT), {"images": {"column": "b"}}, "of a nested type", id="images"),
])  # fmt: skip
def test_sentence_and_place_name_no_key_of_data(
    tmp_path: Path, write: Any, arguments: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    job = job_of(input_path=f"{tmp_path}/in", output_path=f"{tmp_path}/out", **arguments)
    with pytest.raises(SliceError) as caught:
        run_in_process(job)
    assert_told_apart(caught.value, sentence)


def test_column_of_another_type_than_the_table_s_names_no_key_of_data(tmp_path: Path) -> None:
    for day, kind in (("2026-01-01", pa.int64()), ("2026-01-02", pa.string())):
        folder = tmp_path / day
        folder.mkdir()
        parquet(pa.struct([(KEY, kind)]))(folder)
        job = job_of(input_path=str(folder), output_path=f"{tmp_path}/out", slice_key=day)
        if day == "2026-01-01":
            run_in_process(job)
            continue
        with pytest.raises(SliceError) as caught:
            run_in_process(job)
    assert_told_apart(caught.value, "is struct of 1 field, and another struct of 1 field in the table")


def assert_told_apart(error: SliceError, sentence: str) -> None:
    failure = error.failure
    assert sentence in failure.sentence
    assert KEY not in json.dumps([failure.sentence, failure.advice, vars(failure.place)])
    assert any(KEY in text for text in failure.row_texts)
