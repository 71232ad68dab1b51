"""Tables as files of folders that others may write, too: whatever a file says, reading it takes a bounded
amount of memory, runs nobody's code, and gives a valid table or an error.

A file is a head, the schema and one record batch, both as Arrow messages; the batch may be compressed as a
whole. Arrow's own compression, dictionaries and views are refused: a few bytes of them become any number.
"""

from __future__ import annotations

import struct

import pyarrow as pa

#: Bytes of a file's rows at most. A value without bytes (null) counts as one.
MAX_BYTES = 256 << 20
_MAX_SCHEMA_BYTES = 16 << 20
#: zstd makes what it cannot compress a little longer.
MAX_FILE_BYTES = MAX_BYTES + MAX_BYTES // 128 + _MAX_SCHEMA_BYTES
#: Of a binary type with a fixed width: a null takes that much, too.
_MAX_WIDTH_BYTES = 64

_MAGIC = b"RLT1"
#: Magic, whether the batch is compressed, and the lengths of the schema and of the batch as it was. A
#: multiple of 8 bytes, as both are: rows that are not compressed are used where they lie.
_HEAD = struct.Struct("<4s?3xIQ4x")
#: Arrow runs code of whoever registered an extension type when it reads a schema with one.
_EXTENSION = b"ARROW:extension:"
#: Places of fields in Arrow's flatbuffers: of a message, its header; of a record batch, its compression.
_HEADER, _COMPRESSION = 2, 3


class TooLargeError(ValueError):
    """The table is over `MAX_BYTES`."""


def encode(table: pa.Table, *, compress: bool = True) -> bytes:
    """
    :raises TooLargeError: when fewer rows may do.
    :raises ValueError: when a column has a type that files do not hold.
    """
    table = _without_extensions(table)
    _check_types(table.schema)
    schema = table.schema.serialize()
    if table.nbytes > MAX_BYTES or schema.size > _MAX_SCHEMA_BYTES:
        raise TooLargeError(f"{table.num_rows:,} rows with {table.nbytes:,} bytes are too many for a file")
    [batch] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    if _values_without_bytes(batch) > MAX_BYTES or (message := batch.serialize()).size > MAX_BYTES:
        raise TooLargeError(f"{table.num_rows:,} rows are too many for a file")
    head = _HEAD.pack(_MAGIC, compress, schema.size, message.size)
    body = pa.compress(message, "zstd") if compress else message
    return b"".join((head, schema, body))


def schema_end(content: bytes) -> int:
    """Returns with how many bytes a file's schema is read.

    :param content: a file's beginning.
    :raises ValueError: when it is not that.
    """
    _, schema_size, _ = _read_head(content)
    return _HEAD.size + schema_size


def decode_schema(content: bytes) -> pa.Schema:
    """
    :param content: a file's beginning.
    :raises ValueError: when it is not that, or not long enough.
    """
    message = content[_HEAD.size : schema_end(content)]
    _check(_HEAD.size + len(message) == schema_end(content), "it is cut short")
    _check(_EXTENSION not in message, "it has an extension type")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, EOFError) as e:
        raise ValueError(f"its schema is not valid: {e}") from e
    _check_types(schema)
    return schema


def decode(content: bytes, max_bytes: int = MAX_BYTES) -> pa.Table:
    """
    :param max_bytes: of the rows in memory.
    :raises ValueError: when this is not what `encode` writes.
    """
    is_compressed, schema_size, size = _read_head(content)
    _check(size <= max_bytes, f"its rows have {size:,} bytes, and may have {max_bytes:,}")
    schema = decode_schema(content)
    body = pa.py_buffer(content).slice(_HEAD.size + schema_size)
    _check(is_compressed or body.size == size, "it has another length than it says")
    try:
        batch = _read_batch(pa.decompress(body, size, "zstd") if is_compressed else body, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, struct.error, MemoryError) as e:
        raise ValueError(f"its rows are not valid: {e}") from e
    _check(_values_without_bytes(batch) <= max_bytes, "it has too many nulls")
    return pa.Table.from_batches([batch])


def _read_head(content: bytes) -> tuple[bool, int, int]:
    _check(len(content) >= _HEAD.size, "it is cut short")
    magic, is_compressed, schema_size, size = _HEAD.unpack_from(content)
    _check(magic == _MAGIC, "it does not begin as such files do")
    _check(schema_size <= _MAX_SCHEMA_BYTES, f"its schema has {schema_size:,} bytes")
    return is_compressed, schema_size, size


def _read_batch(content: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    message = pa.ipc.read_message(content)  # checks its flatbuffer, so that the next lines can follow it
    _check(message.type == "record batch", f"it holds a {message.type}")
    flatbuffer = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", flatbuffer)
    header = root + _place_of_field(flatbuffer, root, _HEADER)
    header += struct.unpack_from("<I", flatbuffer, header)[0]
    _check(not _place_of_field(flatbuffer, header, _COMPRESSION), "it is compressed within")
    return pa.ipc.read_record_batch(message, schema)


def _place_of_field(flatbuffer: bytes, table: int, field: int) -> int:
    """Relative to the table; 0 when it does not have the field."""
    vtable = table - struct.unpack_from("<i", flatbuffer, table)[0]
    (size,) = struct.unpack_from("<H", flatbuffer, vtable)
    place = 4 + 2 * field
    return int(struct.unpack_from("<H", flatbuffer, vtable + place)[0]) if place + 2 <= size else 0


def _without_extensions(table: pa.Table) -> pa.Table:
    """With the values that extension types, such as of UUIDs, are made of, and no metadata of fields."""
    columns = [
        column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column
        for column in table.columns
    ]
    schema = pa.schema(
        [pa.field(name, column.type) for name, column in zip(table.column_names, columns, strict=True)],
        table.schema.metadata,
    )
    return pa.Table.from_arrays(columns, schema=schema)


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        if not _is_plain(field.type):
            raise ValueError(f"column {field.name!r} has type {field.type}, which such files do not hold")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a value's bytes stand in the file, each once."""
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size > 0 and bool(pa.types.is_primitive(kind.value_type))
    if pa.types.is_map(kind):
        return _is_plain(kind.key_type) and _is_plain(kind.item_type)
    if pa.types.is_fixed_size_binary(kind):
        return bool(0 < kind.byte_width <= _MAX_WIDTH_BYTES)
    return bool(
        pa.types.is_null(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
        or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )  # fmt: skip


def _values_without_bytes(batch: pa.RecordBatch) -> int:
    """Nulls and empty structs, which a few bytes of a list's offsets make any number of."""
    return sum(_count_without_bytes(column) for column in batch.columns)


def _count_without_bytes(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_null(kind):
        return len(array)
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
        return sum(map(_count_without_bytes, children)) if children else len(array)
    if pa.types.is_map(kind):
        return _count_without_bytes(array.keys) + _count_without_bytes(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _count_without_bytes(array.values)
    return 0


def _check(is_fine: bool, why: str) -> None:
    if not is_fine:
        raise ValueError(why)
