"""A row that cannot be read, or whose request cannot be stored, stops no other row."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from tests.support.in_process import InProcess, changed, job_of, run_in_process

BAD_UTF8 = b"\xff\xfe"


def texts(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """A column of text whose bytes need not be UTF-8."""
    array = pa.array(values, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(array), array.buffers())
    return text if kind is None else text.cast(kind)


def read(plan: Plan, *, carry_row: bool = True, **builder: Any) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Requests' prompts with their carried rows, and failed rows, in plan order."""
    if "preprocess" not in builder:
        builder.setdefault("prompt", "{x}")
    reader = RequestReader(
        plan, RequestBuilder(plan.columns, **{"prompt": None, **builder}), carry_row=carry_row
    )
    good, bad = [], []
    for index, unit in enumerate(plan.units):
        for requests, failed in reader(index, np.array([[0, unit.rows]])):
            for row in requests.to_pylist():
                request = json.loads(row["__request"])
                carried = json.loads(row["__row"]) if carry_row else None
                good.append((row["__offset"], request["messages"][-1]["content"], carried))
            bad += [(r["__offset"], r["error_type"], r["error"]) for r in failed.to_pylist()]
    return good, bad


def plan_of(tmp_path: Path, table: pa.Table, **arguments: Any) -> Plan:
    pq.write_table(table, tmp_path / "in.parquet")
    return make_plan(job_of(input_path=str(tmp_path / "in.parquet"), output_path="/elsewhere", **arguments))


_ITEMS = texts([b"fine", BAD_UTF8, b"fine"])
_OFFSETS = pa.array([0, 1, 2, 3], pa.int32())


@pytest.mark.parametrize("cells", [
    pa.array([0, 2**62, 0], pa.timestamp("us")),
    pa.array([0, -(2**62), 0], pa.timestamp("us", tz="UTC")),
    pa.array([0, 253402300799 * 10**6, 0], pa.timestamp("us", tz="Asia/Taipei")),
    pa.array([0, 2**30, 0], pa.date32()),
    pa.array([0, 2**62, 0], pa.duration("s")),
    pa.array([0, 2**60, 0], pa.time64("us")),
], ids=lambda cells: str(cells.type))  # fmt: skip
def test_row_with_an_unreadable_cell_fails_alone_and_names_the_column(
    tmp_path: Path, cells: pa.Array
) -> None:
    plan = plan_of(tmp_path, pa.table({"n": ["0", "1", "2"], "x": cells}))
    good, bad = read(plan, prompt="{n} {x}")
    assert [offset for offset, *_ in good] == [0, 2]
    assert [prompt.split()[0] for _, prompt, _ in good] == ["0", "2"]
    [(offset, error_type, error)] = bad
    assert (offset, error_type) == (1, "InvalidCell")
    assert error.startswith("column 'x' holds a value that Python cannot read: ")
    # Nobody needs the column.
    assert len(read(plan, prompt="{n}")[0]) == 3


@pytest.mark.parametrize("cells", [
    texts([b"fine", BAD_UTF8, b"fine"]),
    texts([b"fine", BAD_UTF8, b"fine"], pa.large_string()),
    texts([b"fine", BAD_UTF8, b"fine"], pa.string_view()),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), texts([b"fine", BAD_UTF8])),
    pa.ListArray.from_arrays(_OFFSETS, _ITEMS),
    pa.StructArray.from_arrays([_ITEMS], ["text"]),
    pa.MapArray.from_arrays(_OFFSETS, _ITEMS, _ITEMS),
], ids=lambda cells: str(cells.type))  # fmt: skip
def test_text_that_is_not_utf8_is_refused_before_a_row_is_asked_or_replaced(
    tmp_path: Path, cells: pa.Array
) -> None:
    table = pa.table({"n": ["0", "1", "2"], "x": cells})
    plan = plan_of(tmp_path, table)
    for prompt in ("{x}", "{n}"):  # also where nobody needs the column
        with pytest.raises(
            SliceError,
            match=r"row 2 of .*in\.parquet: column "
            "'x'.*on_invalid_text",
        ) as caught:
            read(plan, prompt=prompt)
        assert caught.value.kind == "input"
    good, bad = read(plan_of(tmp_path, table, source__on_invalid_text="replace"), prompt="{n} {x}")
    assert ([prompt.count("\ufffd") > 0 for _, prompt, _ in good], bad) == ([False, True, False], [])
    assert len(read(plan_of(tmp_path, table, columns=["n"]), prompt="{n}")[0]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("result", [
    lambda: "half a character: \ud800", lambda: {"messages": [{"role": "user", "content": "\udfff"}]},
    lambda: {"prompt": "x", "sampling_params": {"stop": ["\ud800"]}}, lambda: {"prompt": object(), 1: 2},
    lambda: 10**5000, lambda: {"messages": 10**5000}, lambda: {"prompt": "x", "sampling_params": 7},
    lambda: {"messages": [{("a", "b"): 1}]}, lambda: _raise(_Unprintable()),
    lambda: _raise(ValueError("\ud800")),
    lambda: _raise(type("\ud800", (Exception,), {})()), lambda: _nested(100_000), lambda: None,
])  # fmt: skip
def test_preprocess_that_returns_what_nobody_can_store_fails_its_row_only(
    tmp_path: Path, result: Callable[[], Any]
) -> None:
    plan = plan_of(tmp_path, pa.table({"x": ["a", "b", "c"]}))
    good, bad = read(plan, preprocess=lambda row: result() if row["x"] == "b" else row["x"])
    assert good == [(0, "a", {"x": "a"}), (2, "c", {"x": "c"})]
    [(offset, error_type, error)] = bad
    assert offset == 1
    assert error_type
    assert error


def test_values_at_the_edges_are_requests_as_they_are(tmp_path: Path) -> None:
    table = pa.table({
        "f": [float("nan"), float("inf"), -0.0], "b": [b"\x00\xff", b"text", None],
        "i": pa.array([2**64 - 1, 0, 1], pa.uint64()), "big": ["x" * (1 << 20), "", "é\U0001f600\u2028"],
        "at": pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59), None]),
        "n": [{"a": [float("nan")]}, {"a": None}, None],
    })  # fmt: skip
    plan = plan_of(tmp_path, table)
    good, bad = read(plan, prompt="{f}|{b}|{i}|{big}|{at}|{n}")
    assert bad == []
    prompts = [prompt for _, prompt, _ in good]
    assert prompts[0] == f'nan|AP8=|18446744073709551615|{"x" * (1 << 20)}|0001-01-01T00:00:00|{{"a": [NaN]}}'
    assert prompts[1] == 'inf|text|0||9999-12-31T23:59:59|{"a": null}'
    assert prompts[2] == "-0.0||1|é\U0001f600\u2028||"


def test_carried_row_is_the_input_row_whatever_preprocess_does_to_it(tmp_path: Path) -> None:
    def change(row: dict[str, Any]) -> str:
        row["x"].append("changed")
        return "prompt"

    plan = plan_of(tmp_path, pa.table({"x": [["a"]]}))
    assert read(plan, preprocess=change)[0] == [(0, "prompt", {"x": ["a"]})]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_slice_with_invalid_text_is_refused_or_published_so_that_all_can_read_it(
    tmp_path: Path, suffix: str
) -> None:
    """In the column that the request needs, and in another one, whose row goes to quarantine."""
    path = tmp_path / f"in.{suffix}"
    rows = [(b"fine", BAD_UTF8), (BAD_UTF8, b"fine"), (b"fail", BAD_UTF8)]
    if suffix == "parquet":
        pq.write_table(pa.table({"x": texts([x for x, _ in rows]), "y": texts([y for _, y in rows])}), path)
    elif suffix == "jsonl":
        path.write_bytes(b"".join(b'{"x": "%s", "y": "%s"}\n' % row for row in rows))
    else:
        path.write_bytes(b"x,y\n" + b"".join(b"%s,%s\n" % row for row in rows))
    job = job_of(
        input_path=str(path), output_path=f"{tmp_path}/out", prompt="{x}", quality__max_quarantine=0.5,
    )  # fmt: skip
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"on_invalid_text='replace'") as caught:
        run_in_process(job, cluster)
    assert (caught.value.kind, cluster.answered) == ("input", 0)
    report = run_in_process(changed(job, source__on_invalid_text="replace"))
    assert (report.counts.succeeded, report.counts.quarantined) == (2, 1)
    bad = "\ufffd\ufffd"
    for folder, expected in [
        (job.slice_path, [("fine", bad), (bad, "fine")]),
        (job.paths.quarantine, [("fail", bad)]),
    ]:
        assert duckdb.sql(f"select x, y from '{folder}/*.parquet'").fetchall() == expected
        assert pl.read_parquet(f"{folder}/*.parquet").select("x", "y").rows() == expected


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def _raise(error: Exception) -> None:
    raise error


def _nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return {"messages": value}
