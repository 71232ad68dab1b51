"""A Parquet file's footer, read without running anything that it names.

Beside Parquet's own types a footer may keep Arrow's (`ARROW:schema`), extension types among them. Those run
code: a registered type's class reads what the file says of it, and some of them (Ray's pickled objects) load
a pickle from every cell. So Arrow never sees that part: columns are read by Parquet's types, and then cast to
those of Arrow's that hold the same values.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.schema import HIDDEN_EXTENSION

#: Where Arrow keeps its types, and a name of the same length that it does not look for.
_SCHEMA, _HIDDEN_SCHEMA = b"ARROW:schema", b"ARROW-schema"
_EXTENSION = b"ARROW:extension:name"
_MAGIC = b"PAR1"
#: Enough for most footers: one read.
_FIRST_READ_BYTES = 64 << 10
#: Parquet's own UUIDs and JSON are extension types, too, for the newer versions of Arrow.
_OPTIONS: dict[str, Any] = (
    {"arrow_extensions_enabled": False}
    if "arrow_extensions_enabled" in inspect.signature(pq.ParquetFile).parameters
    else {}
)


@dataclass(frozen=True)
class ParquetFooter:
    """:ivar file: holds the footer only."""

    file: pq.ParquetFile
    digest: str

    @property
    def arrow_types(self) -> bytes:
        """Arrow's types of the columns, as they are stored."""
        return bytes((self.file.metadata.metadata or {}).get(_HIDDEN_SCHEMA, b""))

    def open(self, file: pa.NativeFile) -> pq.ParquetFile:
        """Opens the file whose footer this is. Columns that are near each other are read at once."""
        return pq.ParquetFile(file, metadata=self.file.metadata, pre_buffer=True, **_OPTIONS)

    def build_schema(self) -> pa.Schema:
        """Columns as they are to be read: extension types as what they are stored as."""
        types: pq.ParquetSchema = self.file.schema
        columns = [types.column(i) for i in range(len(types))]
        if any(_HIDDEN_SCHEMA.decode() in column.path for column in columns):
            raise pa.ArrowInvalid(f"a column's name holds {_SCHEMA.decode()!r}, or nearly: rename it")
        uuids = {c.path for c in columns if c.logical_type.type == "UUID" and hasattr(pa, "uuid")}
        hints = _parse_arrow_types(self.arrow_types)
        # Arrow's own type for UUIDs runs no code of a file's.
        return pa.schema(
            field.with_type(pa.uuid())
            if field.name in uuids and field.type == pa.binary(16)
            else _choose_field(field, hints.get(field.name, field))
            for field in self.file.schema_arrow
        )


def read_footer(file: pa.NativeFile, size: int) -> ParquetFooter:
    """:raises pa.ArrowInvalid: for a file that is not Parquet, or whose footer is damaged."""
    footer = _read_bytes(file, size)
    hidden = footer.replace(_SCHEMA, _HIDDEN_SCHEMA)
    whole = b"".join([_MAGIC, hidden, len(hidden).to_bytes(4, "little"), _MAGIC])
    digest = hashlib.sha256(footer).hexdigest()[:16]
    return ParquetFooter(pq.ParquetFile(pa.BufferReader(whole), **_OPTIONS), digest)


def _parse_arrow_types(text: bytes) -> dict[str, pa.Field]:
    """Columns without extension types; {} where the text is damaged, and Parquet's types will do."""
    try:
        schema = base64.b64decode(text).replace(_EXTENSION, HIDDEN_EXTENSION)
        return {field.name: field for field in pa.ipc.read_schema(pa.py_buffer(schema))}
    except (ValueError, OSError, pa.ArrowException):
        return {}


def _read_bytes(file: pa.NativeFile, size: int) -> bytes:
    start = max(0, size - _FIRST_READ_BYTES)
    tail = _read(file, start, size)
    if tail[-4:] == b"PARE":
        raise pa.ArrowInvalid("its footer is encrypted")
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != _MAGIC or length > size - 12:
        raise pa.ArrowInvalid("it does not end with a Parquet footer")
    if length + 8 > len(tail):
        tail = _read(file, size - 8 - length, start) + tail
    return tail[-8 - length : -8]


def _read(file: pa.NativeFile, start: int, end: int) -> bytes:
    file.seek(start)
    data = bytes(file.read(end - start))
    if len(data) != end - start:
        raise pa.ArrowInvalid(f"it ends at byte {start + len(data):,}")
    return data


def _choose_type(stored: pa.DataType, hint: pa.DataType) -> pa.DataType:
    """The hinted type where all values that are stored keep their meaning in it; else the stored one."""
    if pt.is_dictionary(hint):
        return _choose_type(stored, hint.value_type)
    if pt.is_timestamp(stored):
        zoned = stored.tz is not None and pt.is_timestamp(hint) and hint.tz is not None
        return pa.timestamp(stored.unit, hint.tz) if zoned else stored
    if (
        (pt.is_int64(stored) and pt.is_duration(hint))
        or (pt.is_string(stored) and pt.is_large_string(hint))
        or (pt.is_binary(stored) and pt.is_large_binary(hint))
        or (_is_decimal(stored, hint) and (stored.precision, stored.scale) == (hint.precision, hint.scale))
    ):
        return hint
    if pt.is_list(stored) and hasattr(hint, "value_field"):
        value = _choose_field(stored.value_field, hint.value_field)
        if pt.is_fixed_size_list(hint):
            return pa.list_(value, hint.list_size)
        return pa.large_list(value) if pt.is_large_list(hint) else pa.list_(value)
    if pt.is_map(stored) and pt.is_map(hint):
        key = _choose_field(stored.key_field, hint.key_field)
        return pa.map_(key, _choose_field(stored.item_field, hint.item_field))
    if pt.is_struct(stored) and pt.is_struct(hint) and [f.name for f in stored] == [f.name for f in hint]:
        return pa.struct([_choose_field(s, h) for s, h in zip(stored, hint, strict=True)])
    return stored


def _choose_field(stored: pa.Field, hint: pa.Field) -> pa.Field:
    metadata = {**(stored.metadata or {}), **(hint.metadata or {})}
    return stored.with_type(_choose_type(stored.type, hint.type)).with_metadata(metadata)


def _is_decimal(*kinds: pa.DataType) -> bool:
    return all(pt.is_decimal(kind) for kind in kinds)
