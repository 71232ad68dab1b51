"""What stopped a whole slice once, or was believed: bad rows, types that come late, hostile files and
addresses."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.reader import published_dataset, published_files
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.self_naming_rows import Killed, assert_own_answers, kill_after, published, write_rows

# 6. One bad row


def test_bad_cells_cost_their_own_rows_only(tmp_path: Path) -> None:
    at = pa.array([0, 2**62, -(2**62), 0], pa.timestamp("us"))
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"name": ["good", "bad", "worse", "well"], "at": at}), tmp_path / "in" / "a.parquet"
    )
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{name} {at}",
        quality__max_quarantine=0.5,
    )  # fmt: skip
    report = run_in_process(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (2, 2)
    table = published_dataset(job.slice_path).to_table()
    assert table.column("answer").to_pylist() == ["good 1970-01-01T00:00:00", "well 1970-01-01T00:00:00"]


@pytest.fixture
def postprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns the reference of a function with that body, over `row`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def define(body: str, name: str = "user_code") -> str:
        (tmp_path / f"{name}.py").write_text(f"def change(row):\n    {body}\n")
        sys.modules.pop(name, None)
        return f"{name}:change"

    return define


@pytest.mark.parametrize(
    "bad",
    [
        '"\\ud800"', "2**70", "{1, 2}", "{float('nan'): 1}", "__import__('datetime').timedelta.max",
        "__import__('numpy').timedelta64(2**62, 's')", "__import__('pandas').Timedelta(1, 'ns')",
    ],
)  # fmt: skip
def test_what_postprocess_cannot_return_costs_its_own_row_only(
    tmp_path: Path, postprocess: Callable[[str], str], bad: str
) -> None:
    good = '"x"' if bad.startswith('"') else "__import__('datetime').timedelta(1)" if "time" in bad else "7"
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(20)])
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out",
        postprocess=postprocess(f'return {{"value": {bad} if row["name"] == "row 9" else {good}}}'),
    )  # fmt: skip
    report = run_in_process(job)
    assert (report.counts.succeeded, report.counts.quarantined) == (19, 1)


# 7. Refused before it is paid


def test_column_that_readers_know_by_another_type_is_published_or_refused_before_a_row_is_paid(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    names = pa.array([f"row {i}" for i in range(8)], pa.string_view())
    pq.write_table(pa.table({"name": names}), tmp_path / "in" / "a.parquet")
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    run_in_process(job)
    assert_own_answers(job)
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[1, 2]] * 8, pa.list_(pa.float32(), 2))
    )
    pq.write_table(pa.table({"name": names, "t": tensor}), tmp_path / "in" / "a.parquet")
    cluster = InProcess()
    again = changed(job, output_path=f"{tmp_path}/out2")
    run_in_process(again, cluster)
    assert_own_answers(again)
    assert published(again)[0]["t"] == [1, 2]


def test_types_of_postprocess_that_change_are_published_or_cost_only_the_rows_that_differ(
    tmp_path: Path, postprocess: Callable[[str], str]
) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    value = 'None if i < 5 else i if i < 20 else i / 2 if i < 38 else "x"'
    body = f'i = int(row["name"][4:]); return {{"value": {value}}}'
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", postprocess=postprocess(body))
    cluster = InProcess(batch=4)
    report = run_in_process(job, cluster)
    assert cluster.answered == 40
    assert (report.counts.succeeded, report.counts.quarantined) == (38, 2)
    values = [row["value"] for row in published(job)]
    assert values == [None] * 5 + [float(i) for i in range(5, 20)] + [i / 2 for i in range(20, 38)]


# 10. Code in the input


@pytest.mark.slow
def test_pickled_objects_in_the_input_run_no_code(tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    program = f"""
import os, pickle, sys
import pyarrow as pa, pyarrow.parquet as pq
import ray.data
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType
class Evil:
    def __reduce__(self):
        return os.system, ("touch {flag}",)
payload = pickle.dumps(Evil())
column = pa.ExtensionArray.from_storage(ArrowPythonObjectType(), pa.array([payload] * 4, pa.large_binary()))
os.makedirs("{tmp_path}/in")
pq.write_table(pa.table({{"name": ["a", "b", "c", "d"], "x": column}}), "{tmp_path}/in/a.parquet")
from tests.support.in_process import job_of, run_in_process
for prompt in ("{{name}}", "{{name}} {{x}}"):
    try:
        run_in_process(job_of(input_path="{tmp_path}/in/", output_path="{tmp_path}/out", prompt=prompt))
    except Exception as e:
        print(e)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert not flag.exists()
    assert "x" in result.stdout


# 11. Hostile files


def test_commit_that_names_files_outside_the_slice_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(4)])
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", rerun__on_config_change="recompute"
    )
    run_in_process(job)
    metadata = Store(job.paths.metadata)
    body = metadata.read_document(versions.commit_name(1))
    (tmp_path / "secret").write_text("secret")
    for change in (
        {"files": [{**body["files"][0], "name": "../../secret"}]},
        {"staged": "../../.."},
        {"plan": "../../secret"},
        {"quarantine": [{**body["files"][0], "name": "quarantine-000001-00000-of-00001-../../x.parquet"}]},
    ):
        metadata.remove(versions.commit_name(1))
        metadata.create_document(versions.commit_name(1), {**body, **change})
        for read in (lambda: published_files(job.slice_path), lambda: run_in_process(job)):
            with pytest.raises(SliceError, match="names files that no version has"):
                read()


@pytest.mark.parametrize("damage", ["other file", "structure", "extension"])
def test_planted_plan_leads_to_no_other_file(tmp_path: Path, damage: str) -> None:
    write_rows(tmp_path / "in" / "a.parquet", [f"row {i}" for i in range(40)])
    write_rows(tmp_path / "secret.parquet", [f"secret {i}" for i in range(40)])
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    with pytest.raises(Killed):
        run_in_process(job, kill_after(12))
    store = Store(job.paths.metadata)
    [name] = [f"checkpoint/{n}" for n in store.tree("checkpoint") if "/plan-" in n]
    body = store.read_document(name)
    if damage == "other file":
        secret = make_plan(changed(job, input_path=f"{tmp_path}/secret.parquet")).to_json()
        body["input_files"], body["url"] = secret["input_files"], secret["url"]
    elif damage == "structure":
        del body["headers"]
    else:
        kind = pa.opaque(pa.string(), "x", "y")
        body["schema"] = base64.b64encode(pa.schema([("name", kind)]).serialize()).decode()
    store.remove(name)
    store.create_document(name, body)
    run_in_process(job)
    assert_own_answers(job)
    assert published(job)[0]["name"] == "row 0"


# 12. Addresses and schemas


@pytest.mark.parametrize(
    "address", ["http://example.com/out", "simplecache::s3://lake/out", "s3://KEY:SECRET@lake/out"]
)
def test_addresses_that_send_requests_elsewhere_are_refused_and_no_secret_is_shown(address: str) -> None:
    with pytest.raises(pydantic.ValidationError) as e:
        job_of(input_path="/in", output_path=address)
    assert "SECRET" not in str(e.value.errors(include_input=False, include_context=False))


def test_answers_of_an_open_schema_are_published_as_they_are(tmp_path: Path) -> None:
    answers = ['{"a": 1, "b": [2, null]}', "{}", '{"c": {"d": "e"}}']
    write_rows(tmp_path / "in" / "a.parquet", answers)
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", output_schema={"type": "object"}
    )
    run_in_process(job)
    assert [json.loads(row["answer"]) for row in published(job)] == [json.loads(a) for a in answers]


@pytest.mark.parametrize(
    "schema", [{"$ref": "http://127.0.0.1:1/x.json"}, {"properties": {"a": {"$ref": "file:///etc/passwd"}}}]
)
def test_schema_that_refers_to_another_place_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="ref"):
        job_of(input_path="/in", output_path="/data/out", output_schema=schema)
