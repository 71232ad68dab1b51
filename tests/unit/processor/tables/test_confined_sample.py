"""A file that others wrote takes a bounded share of the server that shows some rows of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.tables import confined_sample as confined

LIMIT_S = 60.0


def sample(
    folder: Path, *tables: pa.Table, rows: int = 20, columns: int = 60, limit_s: float = LIMIT_S
) -> Any:
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"{i}.parquet", compression="zstd", store_schema=False)
    files = [(Store(str(folder)), f"{i}.parquet") for i in range(len(tables))]
    return confined.confined_sample(files, rows, columns, limit_s)


@pytest.mark.slow
def test_column_that_needs_more_memory_than_it_may_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "_MEMORY_BYTES", 32 << 20)
    bomb = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["x" * (40 << 20)]))
    names, rows = sample(tmp_path, pa.table({"name": ["a", "b"], "bomb": bomb, "last": [1, None]}))
    assert (tmp_path / "0.parquet").stat().st_size < 10_000
    assert names == ["name", "bomb", "last"]
    assert [row[::2] for row in rows] == [["a", "1"], ["b", None]]
    assert "too large" in rows[0][1]


@pytest.mark.slow
def test_long_values_are_cut_before_they_are_python_s(tmp_path: Path) -> None:
    numbers = pa.nulls(5 << 20, pa.int8())
    table = pa.table({
        "list": pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers),
        "text": ["y" * (5 << 20)], "blob": [bytes(5 << 20)],
        "deep": [[{"a": ["z" * 5_000]}]],
    })  # fmt: skip
    _, [row] = sample(tmp_path, table)
    assert [len(cell) for cell in row] == [2001, 2001, len("5,242,880 bytes"), 2001]


@pytest.mark.slow
def test_rows_come_from_as_many_files_as_needed(tmp_path: Path) -> None:
    tables = [pa.table({"n": [i, i], "other": ["x", "y"]}) for i in range(3)]
    assert sample(tmp_path, *tables, rows=3, columns=1) == (["n"], [["0"], ["0"], ["1"]])
    assert sample(tmp_path, pa.table({"n": pa.array([], pa.int8())})) == (["n"], [])


@pytest.mark.slow
@pytest.mark.parametrize("names", [["meta", "meta.lang"], ["meta.lang", "meta"], ["meta.lang", "meta.lang"]])
def test_column_is_found_by_its_own_name(tmp_path: Path, names: list[str]) -> None:
    """Which may be a path to Arrow, or that of two."""
    nested = pa.array([{"lang": "nested"}])
    values = [nested if name == "meta" else pa.array([f"flat {i}"]) for i, name in enumerate(names)]
    _, [row] = sample(tmp_path, pa.table(values, names))
    assert row == [str(value[0].as_py()) for value in values]


@pytest.mark.slow
def test_little_is_read_ahead_of_an_object(s3_store: Store) -> None:
    """By the server itself, of each column."""
    s3_store.put("a.parquet", b"x" * 100)
    with confined._open(s3_store, "a.parquet") as file:
        assert file.blocksize == 1 << 20  # type: ignore[attr-defined]


@pytest.mark.parametrize("executable", [None, "/bin/false"])
def test_process_that_does_not_start_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(SliceError, match="does not start"):
        sample(tmp_path, pa.table({"a": [1]}))


def test_value_that_python_lacks_hides_no_row(tmp_path: Path) -> None:
    table = pa.table({"name": ["a", "b"], "at": pa.array([2**62, 0], pa.timestamp("us"))})
    _, rows = sample(tmp_path, table)
    assert [row[0] for row in rows] == ["a", "b"]
    assert "out of range" in rows[0][1]


def test_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(b"no Parquet any more")
    with pytest.raises(SliceError, match=r"0\.parquet is damaged: Parquet magic bytes not found"):
        confined.confined_sample([(Store(str(tmp_path)), "0.parquet")], 1, 1, LIMIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("program", [
    pytest.param("import time; time.sleep(600)", id="hangs"),
    pytest.param("import os; os.abort()", id="ends"),
    pytest.param(f"print('x' * {confined._ANSWER_BYTES + 1})", id="answers too much"),
])  # fmt: skip
def test_process_that_does_not_answer_as_it_should_is_ended(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(confined, "_MAIN", program)
    with pytest.raises(SliceError, match="more memory or time"):
        confined.confined_sample([], 1, 1, 1.0)


def test_process_has_neither_credentials_nor_room_beyond_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    look = (
        f"import json, os, resource, sys; sys.path[:] = json.loads(sys.argv[1]); from {confined.__name__} "
        "import _limit; _limit(7, 1 << 26); limits = [resource.getrlimit(n) for n in (resource.RLIMIT_AS, "
        "resource.RLIMIT_CPU)]; print(json.dumps({'names': list(os.environ), 'rows': limits}))"
    )
    monkeypatch.setattr(confined, "_MAIN", look)
    names, (memory, cpu) = confined.confined_sample([], 1, 1, LIMIT_S)
    assert "AWS_SECRET_ACCESS_KEY" not in names
    assert memory[0] == memory[1] < 1 << 30  # type: ignore[operator]
    assert cpu == [7, 7]


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = "import sys; sys.modules['pyarrow'] = None; "
    monkeypatch.setattr(confined, "_MAIN", hidden + confined._MAIN)
    with pytest.raises(ImportError) as raised:
        sample(tmp_path, pa.table({"n": [1]}))
    assert raised.value.name == "pyarrow"
