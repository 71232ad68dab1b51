"""A Parquet file's footer, read without running anything that it names.

Beside Parquet's own types a footer may keep Arrow's (`ARROW:schema`), extension types among them. Those run
code: a registered type's class reads what the file says of it, and some of them (Ray's pickled objects) load
a pickle from every cell. So Arrow never sees that part: columns are read by Parquet's types, and then
converted to those of Arrow's that hold the same values.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_provider_raydatallm.processor.input.formats.parquet_chunks import (
    ColumnChunk,
    hold_variants,
    read_chunks,
    times_in_utc,
)
from airflow_provider_raydatallm.processor.input.problems import Refusal
from airflow_provider_raydatallm.processor.input.types.plain import (
    children,
    leaf_paths,
    plain_type,
    replace_parts,
)

#: Where Arrow keeps its types, and a name of the same length that it does not look for; the same for the name
#: of an extension type.
_SCHEMA, _HIDDEN_SCHEMA = b"ARROW:schema", b"ARROW-schema"
_EXTENSION, _HIDDEN_EXTENSION = b"ARROW:extension:name", b"ARROW-extension:name"
_MAGIC = b"PAR1"
#: Enough for most footers: one read.
_FIRST_READ_BYTES = 64 << 10
_PARAMETERS = inspect.signature(pq.ParquetFile).parameters
#: Parquet's own UUIDs and JSON are extension types, too, for the newer versions of Arrow.
_OPTIONS: dict[str, Any] = (
    {"arrow_extensions_enabled": False} if "arrow_extensions_enabled" in _PARAMETERS else {}
)
#: Extension types of columns whose values are not what is stored: why, and what to do.
_REFUSED_EXTENSIONS = {
    b"ray.data.arrow_pickled_object": Refusal(
        "holds pickled Python objects, and reading one runs whatever code it names",
        "Write the column with an Arrow type",
    ),
    b"pandas.period": Refusal(
        "holds periods of pandas, which are stored as bare numbers", "Write their start times, or text"
    ),
}
_INTERVAL = Refusal(
    "holds intervals of months, days and milliseconds, which no Arrow type keeps",
    "Write the column as text, or as a duration",
)
_TIME_IN_UTC = Refusal(
    "holds times of day with a timezone, which no Arrow type keeps",
    "Write the column as text, or as times without one",
)
_VARIANT = Refusal(
    "holds values with types of their own (VARIANT), which no Arrow type keeps",
    "Write the column as text in JSON",
)
_VARIANT_FIELDS = {"metadata", "value"}
#: How types that Parquet lacks are stored.
_BARE = ("FIXED_LEN_BYTE_ARRAY", "NONE")
_UNKNOWN = Refusal(
    "has a type that Arrow does not know, such as integers of 128 bits",
    "Write the column as decimal(38, 0), or as text",
)
Int96Unit = Literal["us", "ns"]


@dataclass(frozen=True)
class ParquetFooter:
    """:ivar file: holds the footer only.
    :ivar content: its bytes.
    :ivar int96_unit: of timestamps in the old format: its days are of any year, and wrap in nanoseconds.
    """

    file: pq.ParquetFile
    content: bytes = field(repr=False)
    int96_unit: Int96Unit = "us"

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]

    @cached_property
    def chunks(self) -> list[list[ColumnChunk]]:
        """Of each row group, those of the leaf columns.

        :raises ValueError: for a damaged footer.
        """
        return read_chunks(self.content)

    @property
    def may_be_encrypted(self) -> bool:
        """Whether a signature follows what pyarrow read: some columns are encrypted then."""
        return bool(self.file.metadata.serialized_size != len(self.content))

    def open(self, file: pa.NativeFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
        """Opens the file whose footer this is. Columns that are near each other are read at once.

        :param dictionaries: paths of leaf columns to be read as dictionaries.
        """
        return pq.ParquetFile(
            file,
            metadata=self.file.metadata,
            pre_buffer=True,
            coerce_int96_timestamp_unit=self.int96_unit,
            read_dictionary=list(dictionaries) or None,
            page_checksum_verification=True,
            **_OPTIONS,
        )

    @cached_property
    def leaves(self) -> list[Any]:
        """Parquet's leaf columns."""
        schema = self.file.schema
        return [schema.column(i) for i in range(len(schema))]

    def has_same_types(self, other: ParquetFooter) -> bool:
        """Whether its columns are those of another file. Parquet's schemas are equal whatever nested columns
        are named, and Arrow's whatever Parquet says beside."""
        return (
            self._arrow_types == other._arrow_types
            and self.file.schema.equals(other.file.schema)
            and self.file.schema_arrow.equals(other.file.schema_arrow)
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns' plain types: extension types as what they are stored as, but for UUIDs, which run no
        code of a file's.

        :raises pa.ArrowInvalid: for names that no table may have.
        """
        if any(_HIDDEN_SCHEMA.decode() in leaf.path for leaf in self.leaves):
            raise pa.ArrowInvalid(f"a column's name holds {_SCHEMA.decode()!r}, or nearly: rename it")
        hints = self._hints
        leaves = iter(self.leaves)
        fields = []
        for stored in self.file.schema_arrow:
            kind = _with_logical_types(stored.type, leaves)
            hint = hints.get(stored.name)
            fields.append(
                pa.field(stored.name, plain_type(kind if hint is None else _choose_type(kind, hint.type)))
            )
        return pa.schema(fields)

    @cached_property
    def refused(self) -> dict[str, Refusal]:
        """Columns that cannot be read as what they are: why, and what to do."""
        hints = self._hints
        found = {name: why for name, hint in hints.items() if (why := _refused_extension(hint)) is not None}
        columns = [name for name, *_ in leaf_paths(self.file.schema_arrow)]
        kinds = [leaf.logical_type for leaf in self.leaves]
        found |= {
            name: _INTERVAL for name, kind in zip(columns, kinds, strict=True) if "Interval" in kind.to_json()
        }
        if self._arrow_schema is None:
            kept = zip(columns, self.leaves, strict=True)
            bare = [name for name, leaf in kept if (leaf.physical_type, leaf.logical_type.type) == _BARE]
            found |= dict.fromkeys(bare, _UNKNOWN)
        if any(kind.type == "TIME" for kind in kinds):
            in_utc = zip(columns, times_in_utc(self.content), strict=True)
            # Arrow's own times of day say so, too, in files of its older versions.
            found |= {name: _TIME_IN_UTC for name, is_in_utc in in_utc if is_in_utc and name not in hints}
        if any(map(_may_be_variant, self.file.schema_arrow.types)):
            names = zip(self.file.schema_arrow.names, hold_variants(self.content), strict=True)
            found |= {name: _VARIANT for name, is_variant in names if is_variant}
        return found

    @cached_property
    def _arrow_types(self) -> bytes:
        """Arrow's types of the columns, as they are stored."""
        return bytes((self.file.metadata.metadata or {}).get(_HIDDEN_SCHEMA, b""))

    @cached_property
    def _hints(self) -> dict[str, pa.Field]:
        return {hint.name: hint for hint in self._arrow_schema or ()}

    @cached_property
    def _arrow_schema(self) -> pa.Schema | None:
        """Arrow's types of the columns, without extension types; none where they are damaged: Parquet's will
        do. None where one of them is none of Arrow's."""
        try:
            schema = base64.b64decode(self._arrow_types).replace(_EXTENSION, _HIDDEN_EXTENSION)
            return pa.ipc.read_schema(pa.py_buffer(schema))
        except pa.ArrowNotImplementedError:
            return None
        except (ValueError, OSError, pa.ArrowException):
            return pa.schema([])


def read_footer(file: pa.NativeFile, size: int) -> ParquetFooter:
    """:raises pa.ArrowInvalid: for a file that is not Parquet, or whose footer is damaged."""
    return parse_footer(_read_bytes(file, size))


def parse_footer(footer: bytes, int96_unit: Int96Unit = "us") -> ParquetFooter:
    """:raises pa.ArrowInvalid: for a damaged footer."""
    hidden = footer.replace(_SCHEMA, _HIDDEN_SCHEMA)
    whole = b"".join([_MAGIC, hidden, len(hidden).to_bytes(4, "little"), _MAGIC])
    file = pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit=int96_unit, **_OPTIONS)
    return ParquetFooter(file, footer, int96_unit)


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


def _with_logical_types(kind: pa.DataType, leaves: Iterator[Any]) -> pa.DataType:
    """What Arrow reads as bytes, and Parquet says is a UUID or a text.

    :param leaves: Parquet's leaf columns, from the type's first one on.
    """
    return replace_parts(kind, lambda _, part: None if children(part) else _logical_type(part, next(leaves)))


def _logical_type(kind: pa.DataType, leaf: Any) -> pa.DataType:
    name = leaf.logical_type.type
    if name == "UUID" and kind == pa.binary(16) and hasattr(pa, "uuid"):
        return pa.uuid()
    return pa.string() if name == "ENUM" and pt.is_binary(kind) else kind


def _may_be_variant(kind: pa.DataType) -> bool:
    names = {field.name for field in kind} if pt.is_struct(kind) else set()
    return names >= _VARIANT_FIELDS or any(_may_be_variant(part) for _, part in children(kind))


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
        value = _choose_type(stored.value_type, hint.value_type)
        if pt.is_fixed_size_list(hint):
            return pa.list_(value, hint.list_size)
        return pa.large_list(value) if pt.is_large_list(hint) else pa.list_(value)
    if pt.is_map(stored) and pt.is_map(hint):
        key = _choose_type(stored.key_type, hint.key_type)
        return pa.map_(key, _choose_type(stored.item_type, hint.item_type))
    if pt.is_struct(stored) and pt.is_struct(hint) and [f.name for f in stored] == [f.name for f in hint]:
        return pa.struct(
            [s.with_type(_choose_type(s.type, h.type)) for s, h in zip(stored, hint, strict=True)]
        )
    return stored


def _refused_extension(hint: pa.Field) -> Refusal | None:
    """Why a column is refused for the extension type that it was written as, at any depth."""
    name = (hint.metadata or {}).get(_HIDDEN_EXTENSION)
    if name in _REFUSED_EXTENSIONS:
        return _REFUSED_EXTENSIONS[name]
    kind = hint.type
    parts = [kind.key_field, kind.item_field] if pt.is_map(kind) else map(kind.field, range(kind.num_fields))
    return next((why for part in parts if (why := _refused_extension(part)) is not None), None)


def _is_decimal(*kinds: pa.DataType) -> bool:
    return all(pt.is_decimal(kind) for kind in kinds)
