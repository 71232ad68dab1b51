"""Whatever a file in a shared folder says, reading it gives a valid table or an error: never memory without
end, another process's bytes, or a crash."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.storage import arrow_files
from airflow_provider_raydatallm.processor.storage.arrow_files import decode, decode_schema, encode
from tests.support.paths import ROOT

PLAIN = {
    "text": ["a", None, "ü"], "n": [1, 2, None], "x": [0.5, None, 2.0], "nothing": [None, None, None],
    "list": [[1], [], None], "empty lists": [[], [], []], "bytes": [b"\xff", b"", None],
    "struct": [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
}  # fmt: skip


def file_of(schema: pa.Schema, message: bytes, *, size: int | None = None, compress: bool = False) -> bytes:
    """What a program that is not ours may write."""
    head = schema.serialize().to_pybytes()
    body = pa.compress(message, "zstd", asbytes=True) if compress else message
    return (
        arrow_files._HEAD.pack(b"RLT1", compress, len(head), len(message) if size is None else size)
        + head
        + body
    )


@pytest.mark.parametrize("compress", [True, False])
def test_table_comes_back_as_it_was(compress: bool) -> None:
    table = pa.table(PLAIN).replace_schema_metadata({"k": "v"})
    content = encode(table, compress=compress)
    assert decode(content).equals(table, check_metadata=True)
    assert decode_schema(content[:4096]).metadata == {b"k": b"v"}
    for empty in (table.slice(0, 0), table.schema.empty_table()):
        assert decode(encode(empty)).equals(empty)
    assert decode(encode(table.slice(1, 1))).to_pylist() == table.slice(1, 1).to_pylist()


def test_values_of_extension_types_are_stored_plain() -> None:
    ids = [uuid.uuid4(), uuid.uuid4()]
    assert decode(encode(pa.table({"id": pa.array(ids)}))).column("id").to_pylist() == [i.bytes for i in ids]


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.binary_view(), pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int32(), pa.int8()), pa.list_(pa.null(), 1 << 30), pa.binary(1 << 20),
        pa.struct([("a", pa.list_(pa.string_view()))]),
        pa.binary(0),
    ],
)  # fmt: skip
def test_types_that_make_much_of_little_are_refused_by_both(kind: pa.DataType) -> None:
    schema = pa.schema([("c", kind)])
    with pytest.raises(ValueError, match=r"column 'c' has type .*, which such files do not hold"):
        encode(schema.empty_table())
    with pytest.raises(ValueError, match=r"column 'c' has type .*, which such files do not hold"):
        decode(file_of(schema, b""))


@pytest.mark.slow
def test_extension_type_is_refused_before_its_code_runs() -> None:
    """Ray registers types whose reading unpickles what the file says."""
    script = """
        import pyarrow as pa, sys
        class Evil(pa.ExtensionType):
            def __init__(self): super().__init__(pa.int8(), "evil")
            def __arrow_ext_serialize__(self): return b""
            @classmethod
            def __arrow_ext_deserialize__(cls, storage, data):
                print("RAN")
                return cls()
        pa.register_extension_type(Evil())
        from airflow_provider_raydatallm.processor.storage.arrow_files import decode_schema
        from tests.unit.processor.storage.test_arrow_files import file_of
        content = file_of(pa.schema([("c", pa.struct([("d", Evil())]))]), b"")
        try:
            decode_schema(content)
        except ValueError as e:
            print(e)
    """
    assert run(script) == "it has an extension type\n"


def run(script: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_offsets_into_foreign_memory_are_refused() -> None:
    table = pa.table({"a": ["abc", "def"]})
    message = bytearray(table.to_batches()[0].serialize().to_pybytes())
    offsets = struct.pack("<iii", 0, 3, 6)
    for planted in (
        struct.pack("<iii", 0, 3, 1 << 30),
        struct.pack("<iii", 0, -64, 6),
        struct.pack("<iii", -9, 3, 6),
    ):
        with pytest.raises(ValueError, match="not valid"):
            decode(file_of(table.schema, bytes(message.replace(offsets, planted))))


@pytest.mark.slow
def test_few_bytes_that_decode_to_many_are_refused_cheaply(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string())])
    batch = pa.record_batch({"text": ["x" * (400 << 20)]}, schema)
    message = batch.serialize().to_pybytes()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(batch)
    within = sink.getvalue().to_pybytes()[schema.serialize().size :]
    files = [
        ("its rows have 419,430,", file_of(schema, message, compress=True)),
        ("its rows are not valid: ZSTD", file_of(schema, message, compress=True, size=1000)),
        ("it is compressed within", file_of(schema, within)),
        ("it is compressed within", file_of(schema, within, compress=True)),
    ]
    for number, (_, content) in enumerate(files):
        assert len(content) < 100_000
        (tmp_path / f"{number}").write_bytes(content)
    script = f"""
        import resource
        from pathlib import Path
        from airflow_provider_raydatallm.processor.storage.arrow_files import decode
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(4):
            try:
                decode((Path({str(tmp_path)!r}) / str(number)).read_bytes())
            except ValueError as e:
                print(e)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000)
    """
    *refusals, is_cheap = run(script).splitlines()
    assert [r.startswith(why) for r, (why, _) in zip(refusals, files, strict=True)] == [True] * 4
    assert is_cheap == "True"


def test_reader_sets_the_limit() -> None:
    content = encode(pa.table({"a": ["x" * 1000]}))
    with pytest.raises(ValueError, match=r"its rows have 1,\d+ bytes, and may have 1,000"):
        decode(content, max_bytes=1000)


@pytest.mark.parametrize(
    "array",
    [
        pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None]),
        pa.ListArray.from_arrays(
            pa.array([0, (1 << 31) - 1], pa.int32()), pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])
        ),
    ],
)
def test_nulls_without_bytes_are_bounded(array: pa.Array) -> None:
    table = pa.table({"a": array})
    with pytest.raises(ValueError, match="too many"):
        encode(table)
    with pytest.raises(ValueError, match="too many nulls"):
        decode(file_of(table.schema, table.to_batches()[0].serialize().to_pybytes()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_mutated_files_give_tables_or_errors_and_end_no_process(seed: int) -> None:
    script = f"""
        import random
        import pyarrow as pa
        from tests.unit.processor.storage.test_arrow_files import PLAIN
        from airflow_provider_raydatallm.processor.storage.arrow_files import decode, encode
        chance, refused = random.Random({seed}), 0
        content = encode(pa.table(PLAIN), compress=False)
        for _ in range(4000):
            mutated = bytearray(content)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(mutated))
                mutated[at : at + chance.choice((1, 4, 8))] = chance.choice(
                    (bytes([chance.randrange(256)]), b"\\xff" * 4, b"\\0" * 8, chance.randbytes(4))
                )
            if chance.random() < 0.1:
                del mutated[chance.randrange(len(mutated)) :]
            try:
                str(decode(bytes(mutated)).to_pylist())
            except ValueError:
                refused += 1
        print(refused > 1000)
    """
    assert run(script) == "True\n"


def test_what_a_table_may_have_is_split_by_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "MAX_BYTES", 1000)
    with pytest.raises(arrow_files.TooLargeError, match="too many for a file"):
        encode(pa.table({"a": ["x" * 600] * 2}))
    assert decode(encode(pa.table({"a": ["x" * 600]}))).num_rows == 1
