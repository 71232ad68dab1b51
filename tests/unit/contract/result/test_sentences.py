"""Failures are records: one sentence, advice apart, and texts of rows in a field of their own."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm import exceptions
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.spec.tasks.base import MediaColumn
from airflow_provider_raydatallm.processor.engines.http.replies import (
    DoubtfulRefusalError,
    raise_unless_answered,
)
from airflow_provider_raydatallm.processor.input.publishable import as_published
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.media.cells import files_of_cell
from airflow_provider_raydatallm.processor.request.adapter_choice import AdapterChoice
from airflow_provider_raydatallm.processor.request.conversation import (
    check_conversation_column,
    read_conversation,
)
from airflow_provider_raydatallm.processor.request.prompt import Template
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder
from tests.support.in_process import InProcess, answer_fixed, job_of, run_in_process
from tests.support.paths import ROOT

PACKAGE = ROOT / "airflow_provider_raydatallm"
NAMES = {
    "LocalHeadError",
    "SliceError",
    "missing_column",
    *(name for name, one in inspect.getmembers(exceptions, inspect.isclass) if name.startswith("Ray")),
}
#: Stands for a value.
VALUE = "\0"
_END = re.compile(r"[.?!] [A-Z]|[.?!]$")
_ADVICE = re.compile(
    r"(?:[:;,]|, or) (?:add|ask|check|choose|correct|declare|fix|give|have|install|leave|lower|name|narrow"
    r"|omit|pass|put|raise|remove|rename|run|set|simplify|spread|split|trigger|use|wait|write) "
)


def calls() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        path = str(file.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
                yield f"{path}:{node.lineno}", node


CALLS = dict(calls())


def text_of(node: ast.AST | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    return VALUE


def advice_of(call: ast.Call) -> list[str]:
    given = next((one.value for one in call.keywords if one.arg == "advice"), None)
    return [text_of(one) for one in (given.elts if isinstance(given, ast.Tuple | ast.List) else [given])]


def test_package_has_such_errors() -> None:
    assert len(CALLS) > 150


@pytest.mark.parametrize("at", CALLS)
def test_sentence_is_one_and_tells_not_what_to_do(at: str) -> None:
    call = CALLS[at]
    sentence = text_of(call.args[0]) if call.args else VALUE
    assert not _END.search(sentence), sentence
    assert not _ADVICE.search(sentence), sentence


@pytest.mark.parametrize("at", CALLS)
def test_advice_begins_as_a_sentence_and_has_no_full_stop(at: str) -> None:
    for advice in advice_of(CALLS[at]):
        first = advice.split(" ")[0]
        assert not first.isalpha() or first[0].isupper(), advice
        assert not advice.endswith("."), advice


ROW = "Jane Doe 5551234"
#: Files of a slice with a row that cannot be read, and the slice's other arguments.
INPUTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "csv, too many fields": ({"a.csv": f"n,x\n1,y,{ROW}\n"}, {}),
    "csv, a value of another type": ({"a.csv": f"n\n{ROW}\n"}, {"source__column_types": {"n": "int64"}}),
    "csv, a CR alone": ({"a.csv": f"n,x\n1,{ROW}\ry\n"}, {}),
    "csv, a header is missing": ({"a.csv": "n,x\n1,2\n", "b.csv": f"3,{ROW}\n"}, {}),
    "csv, no header, and a value twice": ({"a.csv": f"{ROW},{ROW}\n"}, {}),
    "csv, no header, and other text": ({"a.csv": f"{ROW},x\n1,2\n\udce4,2\n"}, {}),
    "json, no object": ({"a.jsonl": f'"{ROW}"\n'}, {}),
    "json, a text like a parser's": ({"a.jsonl": '"in row 5551234: Jane Doe"\n'}, {}),
    "json, a value of another type": (
        {"a.jsonl": f'{{"n": "{ROW}"}}\n'}, {"source__column_types": {"n": "date32"}}
    ),
}  # fmt: skip


def refuse(act: Callable[[], object]) -> tuple[str, Failure]:
    with pytest.raises(SliceError) as error:
        act()
    return str(error.value), error.value.failure


def check_hides(text: str, failure: Failure) -> None:
    assert failure.row_texts
    hidden = json.dumps(failure.without_row_texts().to_json())
    for part in ("Jane", "Doe", "5551234"):
        assert part not in hidden
        assert part in text


@pytest.mark.parametrize("name", INPUTS)
def test_files_row_is_in_no_sentence(tmp_path: Path, name: str) -> None:
    files, arguments = INPUTS[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content.encode(errors="surrogateescape"))
    job = job_of(input_path=str(tmp_path), output_path="/elsewhere", **arguments)
    text, failure = refuse(lambda: make_plan(job))
    check_hides(text, failure)
    assert failure.kind == "input"
    assert failure.advice
    assert failure.place.file is not None


@pytest.mark.parametrize(("content", "arguments", "fault"), [
    ("n,x\n1,2\n1,y,z\n", {}, "the header has 2 fields, and this row has 3"),
    ("n,x\n1,2\n1\n", {}, "the header has 2 fields, and this row has 1"),
    ("n,x\n1,2\ny,2\n", {"source__column_types": {"n": "int64"}}, "column 'n': a value is no int64"),
])  # fmt: skip
def test_csv_record_that_cannot_be_read_has_its_fault_its_row_and_advice(
    tmp_path: Path, content: str, arguments: dict[str, Any], fault: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    job = job_of(input_path=str(tmp_path), output_path="/elsewhere", **arguments)
    _, failure = refuse(lambda: make_plan(job))
    assert failure.sentence.endswith(fault)
    assert (failure.place.file, failure.place.row) == (f"{tmp_path}/a.csv", 2)
    assert " in row 2" in failure.sentence
    assert any("source." in advice for advice in failure.advice)


@pytest.mark.parametrize("arguments", [
    {"source__column_types": {"n": "int64"}}, {"columns": ["n"]}, {"source__column": "n"},
])  # fmt: skip
def test_columns_of_a_file_without_a_header_are_in_no_sentence(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    (tmp_path / "a.csv").write_text(f"{ROW},2\n3,4\n")
    job = job_of(input_path=str(tmp_path), output_path="/elsewhere", **arguments)
    check_hides(*refuse(lambda: make_plan(job)))


def test_value_that_its_folder_contradicts_is_in_no_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "who=me"
    folder.mkdir()
    pq.write_table(pa.table({"who": ["me", ROW]}), folder / "a.parquet")
    job = job_of(input_path=str(tmp_path), output_path="/elsewhere")
    text, failure = refuse(lambda: make_plan(job))
    check_hides(text, failure)
    assert failure.place.column == "who"


@pytest.mark.parametrize(
    "lines",
    [
        [f'{{"n": {{"{ROW}": 1}}}}', f'{{"n": {{"{ROW}": [1]}}}}'],
        [f'{{"n": {{"{ROW}": 1}}}}', '{"n": "x"}'],
        [f'{{"n": [{{"{ROW}": 1}}]}}', '{"n": [1]}'],
        [f'{{"n": {{"{ROW}": 1}}}}', f'{{"n": {{"{ROW.swapcase()}": 1}}}}'],
    ],
)
def test_keys_below_a_column_are_in_no_sentence_where_files_differ(tmp_path: Path, lines: list[str]) -> None:
    for i, line in enumerate(lines):
        (tmp_path / f"{i}.jsonl").write_text(f"{line}\n")
    text, failure = refuse(lambda: make_plan(job_of(input_path=str(tmp_path), output_path="/elsewhere")))
    check_hides(text, failure)
    assert "column 'n'" in failure.sentence
    assert failure.place.column == "n"


def test_error_type_that_an_engine_was_sent_is_in_no_sentence(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("name\nx\n")

    def fail(requests: pa.Table) -> pa.Table:
        answers = answer_fixed(requests)
        for name in ("error_type", "error"):
            values = pa.array([ROW] * answers.num_rows)
            answers = answers.set_column(answers.schema.get_field_index(name), name, values)
        return answers

    job = job_of(input_path=f"{tmp_path}/in.csv", output_path=f"{tmp_path}/out", quality__max_quarantine=0)
    text, failure = refuse(lambda: run_in_process(job, InProcess(answer=fail)))
    check_hides(text, failure)
    assert "1 Other" in failure.sentence


def test_answers_in_the_summary_of_the_quarantine_are_in_no_sentence(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"name\n{ROW}\n")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    job = job_of(input_path=f"{tmp_path}/in.csv", output_path=f"{tmp_path}/out", output_schema=schema)
    text, failure = refuse(lambda: run_in_process(job))
    check_hides(text, failure)
    assert failure.kind == "input"
    assert "1 InvalidOutput" in failure.sentence
    assert failure.place.file == f"{tmp_path}/in.csv"


def test_value_that_cannot_be_published_is_in_no_sentence(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    plan = make_plan(job_of(input_path=str(tmp_path), output_path="/elsewhere"))
    table = pa.table({"n": [ROW]})
    text, failure = refuse(lambda: as_published(plan, table, lambda row: f"row {row}"))
    check_hides(text, failure)
    assert failure.place.column == "n"


@pytest.mark.parametrize("cell", [
    ROW, f'["{ROW}"]', [{"role": ROW, "content": "x"}], [{"role": "user", "content": {ROW: 1}}],
    [{"role": "user", "content": "x", "tool_calls": None, "name": {ROW: 1}}],
])  # fmt: skip
def test_cell_of_a_conversation_is_in_no_sentence(cell: object) -> None:
    text, failure = refuse(lambda: read_conversation("talk", cell))
    hidden = json.dumps(failure.without_row_texts().to_json())
    assert "Jane" not in hidden
    assert "talk" in hidden
    assert failure.row_texts
    assert text.startswith(failure.sentence)


def test_reply_that_repeats_the_request_is_in_no_sentence() -> None:
    body = json.dumps({"error": {"message": f"not allowed: {ROW}"}}).encode()
    with pytest.raises(DoubtfulRefusalError, match=ROW) as error:
        raise_unless_answered(403, {}, body)
    check_hides(str(error.value.of_all), error.value.of_all.failure)


@pytest.mark.parametrize("act", [
    lambda: AdapterChoice({"a": "digest"}, "who").of_row({"who": ROW}),
    lambda: Template("{name}", [ROW, "2"]),
    lambda: check_conversation_column("talk", pa.schema([(ROW, pa.string())])),
    lambda: files_of_cell(MediaColumn("images", "image", "who", 9, (), 1.0), [ROW, None]),
    lambda: RequestBuilder([], prompt=None, preprocess=lambda row: {"text": ROW}).build({}),
    lambda: RequestBuilder([], prompt=None, preprocess=lambda row: {"prompt": "x", ROW: 1}).build({}),
    lambda: RequestBuilder(
        [], prompt=None, preprocess=lambda row: {"prompt": "x", "sampling_params": {"logit_bias": ROW}}
    ).build({}),
])  # fmt: skip
def test_cell_of_which_no_request_is_made_is_in_no_sentence(act: Callable[[], object]) -> None:
    check_hides(*refuse(act))
