"""Who writes the input steers answers, and runs no code; damage is an error that names the file."""

from __future__ import annotations

import base64
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.survey import make_plan
from tests.support.in_process import job_of

PICKLED = "ray.data.arrow_pickled_object"
TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "ray.data.arrow_variable_shaped_tensor")


def plan_of(path: Path, **arguments: Any) -> Plan:
    return make_plan(job_of(**{"input_path": str(path), "output_path": "/elsewhere", **arguments}))


def read(plan: Plan) -> pa.Table:
    return pa.concat_tables([plan.schema.empty_table(), *(t for u in plan.units for t in plan.read(u))])


class _Marks:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


def _extension(field: pa.Field, name: str, parameters: bytes) -> pa.Field:
    """A field that was written as an extension type, as a reader without that type sees it."""
    return field.with_metadata({"ARROW:extension:name": name, "ARROW:extension:metadata": parameters})


def _write(path: Path, table: pa.Table, schema: pa.Schema | str | None = None) -> None:
    """Writes a file that claims to hold `schema`."""
    hint = schema if isinstance(schema, str) else (schema or table.schema).serialize().to_pybytes()
    text = hint if isinstance(hint, str) else base64.b64encode(hint).decode()
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata({"ARROW:schema": text})
        writer.write_table(table)


_NESTINGS: dict[str, Callable[[pa.Field], pa.DataType]] = {
    "top": lambda field: field.type,
    "list": lambda field: pa.list_(field),
    "struct": lambda field: pa.struct([field]),
    "deep": lambda field: pa.list_(pa.struct([pa.field("a", pa.map_(pa.string(), field))])),
}


def _hostile_file(path: Path, nesting: str, name: str, storage: pa.DataType, cell: Any, mark: Path) -> None:
    payload = pickle.dumps(_Marks(mark))
    field = _extension(pa.field("inner", storage), name, payload)
    column = (
        _extension(pa.field("x", storage), name, payload)
        if nesting == "top"
        else pa.field("x", _NESTINGS[nesting](field))
    )
    values = {"top": cell, "list": [cell], "struct": {"inner": cell}, "deep": [{"a": [("k", cell)]}]}
    table = pa.table({"x": pa.array([values[nesting]], column.type), "good": ["fine"]})
    _write(path, table.select(["x", "good"]), pa.schema([column, pa.field("good", pa.string())]))


_READ_WITH_RAY = """
import sys
import pyarrow as pa
import ray.data
from ray.data.extensions import ArrowTensorType, ArrowTensorTypeV2  # registers Ray's types
import ray.data._internal.object_extensions.arrow
from pathlib import Path
from airflow_provider_raydatallm.contract.result.errors import SliceError
from tests.unit.processor.input.test_hostile_files import plan_of, read

class Loud(pa.ExtensionType):
    def __init__(self): super().__init__(pa.binary(), "tests.loud")
    def __arrow_ext_serialize__(self): return b""
    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        print("ran code"); return cls()

pa.register_extension_type(Loud())
for path in sorted(Path(sys.argv[1]).glob("*.parquet")):
    for columns in (None, ["good"]):
        try:
            table = read(plan_of(path, columns=columns))
            print(path.stem, columns, table.schema.types, table.to_pylist())
        except SliceError as e:
            print(path.stem, columns, e)
"""


@pytest.mark.slow
def test_extension_types_of_an_input_run_no_code(tmp_path: Path) -> None:
    """In a process where Ray has registered its own types, whose cells and parameters are pickles."""
    mark = tmp_path / "mark"
    payload = pickle.dumps(_Marks(mark))
    for nesting in _NESTINGS:
        for name in (PICKLED, "tests.loud", "arrow.py_extension_type"):
            _hostile_file(tmp_path / f"{nesting}-{name}.parquet", nesting, name, pa.binary(), payload, mark)
        for name in TENSORS:
            storage = pa.list_(pa.int64())
            _hostile_file(tmp_path / f"{nesting}-{name}.parquet", nesting, name, storage, [1, 2], mark)
    result = subprocess.run(
        [sys.executable, "-c", _READ_WITH_RAY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert not mark.exists()
    assert "ran code" not in result.stdout
    assert "extension<" not in result.stdout
    lines = result.stdout.splitlines()
    assert len(lines) == 2 * len(_NESTINGS) * 6
    for line in lines:
        name, _, rest = line.partition(" ")
        if "['good']" in line.split(" ", 2)[1]:
            assert rest.endswith("[{'good': 'fine'}]"), line
        elif PICKLED in name:
            assert "column 'x' holds pickled Python objects" in line
            assert "leave it out with columns=" in line
        else:
            assert "'good': 'fine'" in rest, line


@pytest.mark.parametrize("hint", ["", "not base64", base64.b64encode(b"not a schema" * 9).decode()])
def test_columns_of_a_file_with_damaged_arrow_types_are_read_by_parquets(tmp_path: Path, hint: str) -> None:
    table = pa.table({"x": ["a"], "n": [1]})
    _write(tmp_path / "a.parquet", table, hint)
    assert read(plan_of(tmp_path)).equals(table)


@pytest.mark.parametrize("claimed", [
    pa.int64(), pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.string()), pa.decimal128(38, 3),
    pa.binary(4), pa.run_end_encoded(pa.int32(), pa.string()), pa.null(), pa.large_list(pa.string()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.month_day_nano_interval(), pa.struct([]), pa.string_view(),
])  # fmt: skip
def test_column_that_claims_another_type_is_read_as_what_it_is(tmp_path: Path, claimed: pa.DataType) -> None:
    table = pa.table({"x": [f"text {i}" for i in range(300)]})
    _write(tmp_path / "a.parquet", table, pa.schema([("x", claimed)]))
    assert read(plan_of(tmp_path)).equals(table)


def test_column_named_as_arrows_types_is_refused(tmp_path: Path) -> None:
    for name in ("ARROW:schema", "ARROW-schema"):
        pq.write_table(pa.table({name: ["a"]}), tmp_path / "a.parquet")
        with pytest.raises(SliceError, match=r"a\.parquet.*'ARROW:schema', or nearly: rename"):
            plan_of(tmp_path)


@pytest.mark.slow
def test_damaged_parquet_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Cut at many places, and with random bytes changed."""
    path = tmp_path / "a.parquet"
    table = pa.table({"x": [f"text {i % 7}" for i in range(200)], "l": [[i] for i in range(200)]})
    pq.write_table(table, path, row_group_size=50)
    whole = path.read_bytes()
    source = random.Random(5)
    damaged = [whole[:size] for size in range(0, len(whole), 61)]
    for _ in range(150):
        data = bytearray(whole)
        for at in source.choices(range(len(whole) - 8 if _ % 2 else len(whole)), k=source.choice([1, 3, 40])):
            data[at] = source.randrange(256)
        damaged.append(bytes(data))
    outcomes = set()
    for data in damaged:
        path.write_bytes(data)
        try:
            rows = read(plan_of(path)).num_rows
            outcomes.add("rows" if rows else "no rows")
        except SliceError as e:
            outcomes.add("named" if str(path) in str(e) else str(e))
    assert outcomes <= {"rows", "no rows", "named"}
    assert "named" in outcomes
