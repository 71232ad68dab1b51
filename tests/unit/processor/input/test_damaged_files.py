"""Files that are damaged, encrypted, cut on their way, or of a size that is no file's: each is refused by
name before a row is paid, in bounded time and memory."""

from __future__ import annotations

import base64
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.formats.csv_files import CsvFormat
from airflow_provider_raydatallm.processor.input.formats.options import ReadOptions
from airflow_provider_raydatallm.processor.input.listing import get_input_file
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.store import Store
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.input_formats import WRITERS, write_input
from tests.support.own_process import in_own_process
from tests.support.s3_dialect import Dialect


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{x}")


def refuse(job: SliceJob, match: str, kind: str = "input") -> None:
    cluster = InProcess()
    with pytest.raises(SliceError, match=match) as refused:
        run_in_process(job, cluster)
    assert (refused.value.kind, cluster.answered) == (kind, 0)


def write_damaged(path: Path, x: list[str]) -> None:
    """Damages the page of a column that the prompt does not use."""
    y = [os.urandom(50) for _ in x]
    pq.write_table(pa.table({"x": x, "y": y}), path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    content[start : start + 12] = bytes(255 - byte for byte in content[start : start + 12])
    path.write_bytes(content)


@pytest.mark.parametrize("good", [0, 1])
def test_damaged_column_is_found_before_a_row_is_paid_and_may_be_left_out_for_nothing(
    job: SliceJob, tmp_path: Path, good: int
) -> None:
    for number in range(good):
        pq.write_table(pa.table({"x": ["a"], "y": [b"b"]}), tmp_path / f"in/{number}.parquet")
    write_damaged(tmp_path / "in/9.parquet", ["c", "d"])
    refuse(job, r"in/9\.parquet .* row group 0, column 'y': .*")
    cluster = InProcess()
    run_in_process(changed(job, columns=["x"]), cluster)
    assert cluster.answered == good + 2


def test_column_that_is_damaged_beyond_what_is_checked_ahead_costs_no_row_twice(
    job: SliceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_raydatallm.processor.input.publishable._AHEAD_BYTES", 1)
    pq.write_table(pa.table({"x": ["a"], "y": [b"b"]}), tmp_path / "in/0.parquet")
    write_damaged(tmp_path / "in/9.parquet", ["c", "d"])
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"in/9\.parquet .* row group 0, column 'y'"):
        run_in_process(job, cluster)
    assert cluster.answered == 1
    run_in_process(changed(job, columns=["x"]), cluster)
    assert cluster.answered == 3
    assert pq.read_table(job.slice_path, partitioning=None).column("x").to_pylist() == ["a", "c", "d"]


@pytest.mark.parametrize("in_footer", [True, False])
def test_encrypted_column_is_refused_and_may_be_left_out(
    job: SliceJob, tmp_path: Path, in_footer: bool
) -> None:
    path = tmp_path / "in/a.parquet"
    config = pe.EncryptionConfiguration(
        footer_key="k", column_keys={"k": ["secret"]}, plaintext_footer=not in_footer
    )
    kms = pe.KmsConnectionConfig(custom_kms_conf={"k": "0123456789abcdef"})
    properties = pe.CryptoFactory(_Kms).file_encryption_properties(kms, config)
    table = pa.table({"x": ["a", "b"], "secret": ["c", "d"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    if in_footer:
        refuse(job, r"in/a\.parquet.*encrypted")
        return
    refuse(job, r"in/a\.parquet: column 'secret' is encrypted.*columns=")
    run_in_process(changed(job, columns=["x"]))
    assert pq.read_table(job.slice_path, partitioning=None).column("x").to_pylist() == ["a", "b"]


class _Kms(pe.KmsClient):  # type: ignore[misc]
    def __init__(self, config: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


_TEXTS: dict[str, tuple[str, str]] = {
    "nested 20,000 deep": ('{"x":' + "[" * 20_000 + "]" * 20_000 + "}\n", "more than 32 levels"),
    "nested 500 deep": ('{"x":' + "[" * 500 + "]" * 500 + "}\n", "more than 32 levels"),
    "structs 400 deep": ('{"x":' * 400 + "1" + "}" * 400 + "\n", "more than 32 levels"),
    "60,000 keys in one record": (
        json.dumps({f"k{i}": i for i in range(60_000)}) + "\n", "more than 10,000 fields",
    ),
    "a key of its own in each of 60,000 records": (
        "".join(f'{{"k{i}": {i}}}\n' for i in range(60_000)), "more than 10,000 fields",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("text", "problem"), _TEXTS.values(), ids=_TEXTS)
def test_json_of_any_depth_or_width_is_refused(
    job: SliceJob, tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "in/a.jsonl").write_text(text)
    refuse(changed(job, prompt="go"), rf"in/a\.jsonl.*{problem}")


@pytest.mark.parametrize("write", [
    lambda path: pq.write_table(pa.table({f"c{i}": [1] for i in range(12_000)}), path / "a.parquet"),
    lambda path: (path / "a.csv").write_text(
        ",".join(f"c{i}" for i in range(12_000)) + "\n" + "1," * 11_999 + "1\n"
    ),
], ids=["parquet", "csv"])  # fmt: skip
@pytest.mark.slow
def test_table_of_any_width_is_refused_or_read_by_its_chosen_columns(
    job: SliceJob, tmp_path: Path, write: Callable[[Path], Any]
) -> None:
    write(tmp_path / "in")
    job = changed(job, prompt="{c1}")
    refuse(job, r"in/a\.\w+ has 12,000 columns, more than the 10,000.*columns=")
    run_in_process(changed(job, columns=["c1"]))


@pytest.mark.slow
def test_damaged_statistics_of_sizes_end_no_process(job: SliceJob, tmp_path: Path) -> None:
    """Each byte of the footer is changed in turn, in a process of its own: an error names the file."""
    path = tmp_path / "in/a.parquet"
    pq.write_table(pa.table({"x": ["a", "b"], "n": [[1], [2, 3]]}), path)
    in_own_process(_read_with_each_byte_changed, str(path))


def _read_with_each_byte_changed(path: str) -> None:
    content = Path(path).read_bytes()
    job = job_of(input_path=path, output_path="/o", prompt="{x}")
    length = int.from_bytes(content[-8:-4], "little")
    for at in range(len(content) - 8 - length, len(content) - 8):
        damaged = content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
        Path(path).write_bytes(damaged)
        problem = ""
        try:
            plan = make_plan(job)
            for unit in plan.units:
                list(plan.read(unit))
        except SliceError as e:
            problem = str(e)
        assert not problem or "a.parquet" in problem


@pytest.mark.long
def test_row_group_that_grows_to_gigabytes_is_read_in_bounded_memory(tmp_path: Path) -> None:
    text = "x" * 2000
    lists = pa.array([[text] * 256] * 4096, pa.list_(pa.string()))
    pq.write_table(pa.table({"x": ["a"] * 4096, "l": lists}), tmp_path / "a.parquet", row_group_size=4096)
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    del lists
    in_own_process(_read_in_a_gigabyte, str(tmp_path))


def _read_in_a_gigabyte(folder: str) -> None:
    job = job_of(input_path=f"{folder}/a.parquet", output_path="/o", prompt="{x}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = make_plan(job)
    [unit] = plan.units
    rows = 0
    for table in plan.read(unit):
        rows += table.num_rows
    assert rows == 4096
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10  # KiB


def test_failure_of_the_store_stays_one_whatever_a_parser_makes_of_it(
    s3_store: Store, dialect: Dialect
) -> None:
    s3_store.put("in/a.csv", b"x\n" * 100)
    fs, path = open_fs(f"{s3_store.url}/in/a.csv")
    file = get_input_file(fs, path)

    def parse() -> None:
        with CsvFormat(fs, ReadOptions()).open(file) as (raw, _):
            try:
                raw.read()
            except SliceError:
                raise ValueError("not a readable file") from None

    dialect.cut_ranges = -1
    with pytest.raises(SliceError, match="A proxy may cut") as caught:
        parse()
    assert caught.value.kind == "transient"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"a.{name}" for name in WRITERS), "a.csv.gz"])
def test_range_that_a_proxy_cuts_is_noticed(
    s3_store: Store, dialect: Dialect, tmp_path: Path, name: str
) -> None:
    table = pa.table({"x": [f"row {i} " + os.urandom(20).hex() for i in range(200)]})
    write_input(tmp_path / name, table)
    s3_store.put(f"in/{name}", (tmp_path / name).read_bytes())
    job = job_of(input_path=f"{s3_store.url}/in/{name}", output_path=f"{tmp_path}/out", prompt="{x}")
    plan = make_plan(job)
    for cut in (lambda: run_in_process(job), lambda: list(plan.read(plan.units[0]))):
        dialect.cut_ranges = -1
        with pytest.raises(SliceError, match=rf"in/{name} could not be read.*A proxy may cut") as caught:
            cut()
        assert caught.value.kind == "transient"
        dialect.cut_ranges = 0
    run_in_process(job)
    assert pq.read_table(job.slice_path, partitioning=None).column("x").to_pylist() == table["x"].to_pylist()
