"""How keys and answers travel between feeders and coordinators: as few objects, each of which costs time."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

KEY_BYTES = 16


def join_keys(keys: Iterable[bytes]) -> bytes:
    return b"".join(keys)


def split_keys(keys: bytes) -> list[bytes]:
    return [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


def pack(table: pa.Table, schema: pa.Schema) -> bytes:
    """:param table: it has the schema's columns, and may have others."""
    table = table.select(schema.names).cast(schema).combine_chunks()
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], schema)]
    return bytes(batch.serialize())


def unpack(message: bytes, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(message), schema)])
