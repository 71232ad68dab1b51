"""Slices through the operator, the Jobs API and Ray Data with a stub engine: what surrounds the engine."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import (
    RayClusterUnfitError,
    RayLLMInputError,
    RayLLMJobError,
    RayModelNotFoundError,
)
from tests.support.marks import long
from tests.support.paths import ROOT
from tests.support.slice_jobs import slice_job
from tests.support.slices import PROGRAM, STUB, Ask

N = 1000


def every_arrow_type() -> pa.Table:
    """A column of each kind that a table may have, with nulls: row by row through Python they would change or
    break."""

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if i % 7 == 3 else values[i % len(values)] for i in range(N)], kind)

    when = dt.datetime(2026, 1, 31, 10, 20, 30, 123456)
    return pa.table({
        "name": pa.array([f"row {i}" for i in range(N)]),
        "big": column([2**62 + 1, -(2**62) - 1], pa.int64()), "uint8": column([0, 255], pa.uint8()),
        "uint64": column([2**64 - 1], pa.uint64()), "float32": column([1.1, float("nan")], pa.float32()),
        "bool": column([True, False], pa.bool_()),
        "decimal": column([decimal.Decimal("12345678901234567.89")], pa.decimal128(38, 2)),
        "date": column([when.date()], pa.date32()), "time": column([when.time()], pa.time64("us")),
        "naive": column([when], pa.timestamp("us")),
        "zoned": column([when.replace(tzinfo=dt.UTC)], pa.timestamp("us", tz="Europe/Berlin")),
        "duration": column([dt.timedelta(days=1, microseconds=1)], pa.duration("us")),
        "binary": column([b"\x00\xff", b""], pa.binary()),
        "large": column(["x" * 100, ""], pa.large_string()),
        "dictionary": column(["a", "b"], pa.string()).dictionary_encode(),
        "list": column([[1, None], []], pa.list_(pa.int64())),
        "struct": column(
            [{"a": 1, "b": None}, {"a": None, "b": "x"}], pa.struct([("a", pa.int8()), ("b", pa.string())]),
        ),
        "map": column([[("k", 1)], []], pa.map_(pa.string(), pa.int32())), "nothing": pa.nulls(N),
    })  # fmt: skip


def published(result: dict[str, Any]) -> pa.Table:
    return pq.read_table(result["output_path"], partitioning=None)


@pytest.mark.long
def test_every_column_type_is_kept_in_input_order(ask: Ask, tmp_path: Path) -> None:
    table = every_arrow_type()
    for i in range(3):
        part = table.slice(i * 400, 400)
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(part, tmp_path / "in" / f"{i}.parquet", row_group_size=150)
    as_written = pq.read_table(tmp_path / "in")
    for name in ("dictionary", "nothing"):  # how readers see the one; what has no value is text
        index = as_written.schema.get_field_index(name)
        as_written = as_written.set_column(index, name, as_written.column(name).cast(pa.string()))

    result = ask(input_path=f"{tmp_path}/in", engine__batch_size=64, **STUB)

    out = published(result)
    assert out.schema == as_written.schema.append(pa.field("answer", pa.string()))
    # NaN is not equal to itself: compare that column by its bits.
    for name in as_written.schema.names:
        if name == "float32":
            assert out.column(name).to_numpy().tobytes() == as_written.column(name).to_numpy().tobytes()
        else:
            assert out.column(name).equals(as_written.column(name)), name
    assert out.column("answer").to_pylist() == [f"Who is row {i}?" for i in range(N)]
    # Readers take the folder as it is, and agree.
    folder = result["output_path"]
    assert pq.read_table(folder, partitioning=None).column("answer").equals(out.column("answer"))
    assert pd.read_parquet(folder)["answer"].tolist() == out.column("answer").to_pylist()
    assert result["counts"] == {
        "planned": N, "succeeded": N, "resumed": 0, "quarantined": 0, "invalid_output": 0,
        "truncated": None, "degenerate": None, "shortened": None, "deduplicated": None, "cached": None,
        "asked_again": None, "uncounted": 0,
    }  # fmt: skip
    assert result["tokens"] == {
        "input": 7 * N, "output": 3 * N, "cached": None, "reasoning": None, "saved": None,
    }  # fmt: skip


@pytest.mark.long
def test_csv_with_code_of_ones_own(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"name": f"n{i}", "zip": f"{i:05}", "note": 'a "quote",\nand a newline'} for i in range(N)]
    lines = [f'{r["name"]},{r["zip"]},"{r["note"].replace(chr(34), chr(34) * 2)}"' for r in rows]
    (tmp_path / "in" / "a.csv").write_text("name,zip,note\n" + "\n".join(lines))
    code = tmp_path / "my_functions.py"
    code.write_text(
        "def ask(row):\n    return "
        "{'prompt': row['name'] + row['zip'], 'sampling_params': {'max_tokens': 5}}\n"
        "def take(row):\n    return {'upper': row['answer'].upper(), 'size': size(row)}\n"
        "def size(row):\n    return 0.5 if row['name'] == 'n999' else len(row['note'])\n"
    )
    stub = {**STUB, "code_paths": [*STUB["code_paths"], str(code)]}

    result = ask(
        input_path=f"{tmp_path}/in/a.csv", prompt=None, preprocess="my_functions:ask",
        postprocess="my_functions:take", **stub,
    )  # fmt: skip
    assert published(result).to_pylist() == [
        {
            **r,
            "upper": f"{r['name']}{r['zip']}".upper(),
            "size": 0.5 if r["name"] == "n999" else len(r["note"]),
        }
        for r in rows
    ]


@pytest.mark.long
def test_trial_of_compressed_json_lines(ask: Ask, tmp_path: Path) -> None:
    rows = [{"name": f"n{i}", "zip": f"{i:05}"} for i in range(N)]
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    result = ask(
        input_path=f"{tmp_path}/b.jsonl.gz", columns=["name"], output_path=f"{tmp_path}/out2",
        source__max_rows=10, **STUB,
    )  # fmt: skip
    assert result["output_path"].endswith("/out2.trial/first-10/ds=2026-01-31")
    assert published(result).to_pylist() == [{"name": f"n{i}", "answer": f"Who is n{i}?"} for i in range(10)]


def test_second_run_is_a_no_op_and_xcom_equals_the_report(ask: Ask, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    first = ask(input_path=f"{tmp_path}/in.parquet", **STUB)
    again = ask(input_path=f"{tmp_path}/in.parquet", **STUB)
    assert (first["outcome"], again["outcome"]) == ("published", "unchanged")
    assert again["ray_job_id"] is None
    assert again["counts"] == first["counts"]
    report = json.loads(Path(first["report_path"]).read_text())
    assert report.pop("version") == 1
    assert sum(report.pop("history")["rows"]) == 2
    report.pop("per_worker")
    for name in ("ray_job_id", "dashboard_url", "report_path"):
        assert first.pop(name)
    assert first.pop("gpus_held") is None
    assert first["seconds"].pop("total") >= first["seconds"].pop("queued") >= 0
    assert first == report
    shown = sorted(p.name for p in Path(first["output_path"]).iterdir())
    assert [name.partition("-")[0] for name in shown] == ["_SUCCESS", "part"]


@pytest.mark.long
def test_changed_prompt_replaces_the_slice_when_told_to(ask: Ask, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    ask(input_path=f"{tmp_path}/in.parquet", **STUB)
    with pytest.raises(RayLLMInputError, match=r"rerun.on_config_change='recompute'"):
        ask(input_path=f"{tmp_path}/in.parquet", prompt="Where is {name}?", **STUB)
    result = ask(
        input_path=f"{tmp_path}/in.parquet",
        prompt="Where is {name}?",
        rerun__on_config_change="recompute",
        **STUB,
    )
    assert published(result).column("answer").to_pylist() == ["Where is a?", "Where is b?"]
    assert (Path(result["output_path"]) / "_SUCCESS").exists()


@pytest.mark.long
def test_failing_row_is_named_and_stops_the_others_only_when_told_to(ask: Ask, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(100)]}), tmp_path / "in.parquet")
    (tmp_path / "bad.py").write_text("def f(row):\n    return 'x' if row['name'] != 'n70' else 1 / 0\n")
    arguments = {
        "input_path": f"{tmp_path}/in.parquet", "prompt": None, "preprocess": "bad:f",
        **STUB, "code_paths": [*STUB["code_paths"], str(tmp_path / "bad.py")],
    }  # fmt: skip
    with pytest.raises(RayLLMInputError, match=r"row 71 of .*in\.parquet: ZeroDivisionError"):
        ask(**arguments, quality__max_quarantine=0.0)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    result = ask(**arguments)
    assert 1 <= result["counts"].pop("resumed") <= 100  # what was answered before the job was ended
    assert result["counts"] == {
        "planned": 100, "succeeded": 99, "quarantined": 1, "invalid_output": 0, "truncated": None,
        "degenerate": None,
        "shortened": None, "deduplicated": None, "cached": None, "asked_again": None, "uncounted": 0,
    }  # fmt: skip
    assert published(result).num_rows == 99
    assert pq.read_table(tmp_path / "out.quarantine", partitioning=None).column("__row").to_pylist() == [71]
    assert not list((tmp_path / "out.ray_llm").rglob("checkpoint"))


@pytest.mark.parametrize(("given", "error", "says"), [
    (
        {"model_source": "/no/such/model"}, RayModelNotFoundError,
        "not a model folder on any of the cluster's 1 node",
    ),
    # `test_command_line_runs_slices_on_the_embedded_head` has the first of these, too.
    long(
        {"engine__workers": 1000}, RayClusterUnfitError,
        r"needs 2002 CPUs where the cluster has 8 .*lower engine.workers",
    ),
    long({"prompt": "Who is {nam}?"}, RayLLMInputError, r"'nam'.*columns are 'name'"),
])  # fmt: skip
def test_impossible_request_fails_at_once_and_says_why(
    ask: Ask, tmp_path: Path, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    with pytest.raises(error, match=says):
        ask(input_path=f"{tmp_path}/in.parquet", **{"model_source": "m/m", "poll_interval": 1.0, **given})
    assert not (tmp_path / "out").exists()


def test_command_line_runs_slices_on_the_embedded_head(ray_head: LocalHead, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    job = slice_job(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", model_source="m/m",
        prompt="{name}", engine__workers=1000,
    )  # fmt: skip
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    done = subprocess.run([PROGRAM, "run", tmp_path / "spec.json"], capture_output=True, text=True)
    assert done.returncode == 1
    # A Ray of its own would have the machine's CPUs.
    assert "needs 2002 CPUs where the cluster has 8" in done.stderr
    dashboard = subprocess.run([PROGRAM, "local", "dashboard", "--json"], capture_output=True, text=True)
    assert json.loads(dashboard.stdout) == {"address": ray_head.address, "token": ray_head.token}


def test_command_line_runs_the_code_that_is_on_its_pythonpath(ray_head: LocalHead, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    (code := tmp_path / "code").mkdir()
    (code / "on_the_path.py").write_text("def ask(row): return 'Who is ' + row['name']")
    engine = ("from tests.support.stub_engine import StubEngine", "class Stub(StubEngine): pass")
    (code / "own_stub.py").write_text("\n".join(engine))
    job = slice_job(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", model_source="m/m",
        prompt=None, preprocess="on_the_path:ask", engine="own_stub:Stub",
    )  # fmt: skip
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    own = os.pathsep.join([os.path.relpath(code, tmp_path), str(ROOT)])
    done = subprocess.run(
        [PROGRAM, "run", "spec.json"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": own},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("published: 2 rows")


@pytest.mark.long
def test_driver_that_dies_without_a_word_is_no_success(ask: Ask, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    (tmp_path / "deadly.py").write_text("import os\nos._exit(0)\n")
    with pytest.raises(RayLLMJobError, match="ended without a report, and published nothing"):
        ask(
            input_path=f"{tmp_path}/in.parquet", prompt=None, preprocess="deadly:f",
            **{**STUB, "code_paths": [*STUB["code_paths"], str(tmp_path / "deadly.py")]},
        )  # fmt: skip


@pytest.mark.long
def test_slice_goes_from_s3_to_s3(ask: Ask, s3: dict[str, str]) -> None:
    fs = s3fs.S3FileSystem(
        key="test", secret="test", endpoint_url=s3["AWS_ENDPOINT_URL"], skip_instance_cache=True
    )
    fs.mkdir("lake")
    lines = "\n".join(f"n{i},{i:05}" for i in range(N))
    fs.pipe_file("lake/in/ds=2026-01-31/a.csv", f"name,zip\n{lines}\n".encode())
    arguments = {
        "input_path": "s3://lake/in/ds={slice}/", "output_path": "s3://lake/out",
        "runtime_env": {"env_vars": s3}, **STUB,
    }  # fmt: skip
    first = ask(**arguments)
    again = ask(**arguments)
    assert (first["outcome"], again["outcome"]) == ("published", "unchanged")
    assert first["report_path"] == "s3://lake/out.ray_llm/ds=2026-01-31/reports/report-000001.json"
    fs.invalidate_cache()
    folders = {name: fs.find(f"lake/{name}/ds=2026-01-31") for name in ("out", "out.ray_llm")}
    last_names = {
        name: [p.rsplit("/", 1)[1].partition("-")[0] for p in found] for name, found in folders.items()
    }
    assert last_names == {
        "out": ["_SUCCESS", "part"],
        "out.ray_llm": ["commit", "complete", "plan", "report", "_SUCCESS"],
    }
    table = pq.read_table("lake/out/ds=2026-01-31", filesystem=fs, partitioning=None)
    assert table.to_pylist() == [
        {"name": f"n{i}", "zip": f"{i:05}", "answer": f"Who is n{i}?"} for i in range(N)
    ]


@pytest.mark.long
def test_rows_with_invalid_answers_are_asked_again_with_what_is_wrong(ask: Ask, tmp_path: Path) -> None:
    """The stub answers with the last message: first with the row, then with what it is told."""
    names = [f"row {i}" if i % 10 else f"Your own {i}" for i in range(N)]
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet", row_group_size=300)
    result = ask(
        **STUB,
        input_path=f"{tmp_path}/in.parquet",
        prompt="{name}",
        regex=r"Your [^\n]*(\n.*)?",
        quality__repair=1,
    )
    answers = pq.read_table(result["output_path"], partitioning=None).column("answer").to_pylist()
    told = "Your answer does not match regex.\nCorrect it, and write nothing but the corrected answer."
    assert answers == [told if i % 10 else f"Your own {i}" for i in range(N)]
    counts, tokens = result["counts"], result["tokens"]
    assert (counts["succeeded"], counts["quarantined"], counts["invalid_output"]) == (N, 0, 0)
    assert tokens["output"] == 3 * (N + N * 9 // 10)
