"""A Parquet file's footer, read without running anything that it names.

Arrow keeps a file's exact types in the footer (`ARROW:schema`), extension types too. Those run code: a
registered type's class reads what the file says of it, and some of them (Ray's pickled objects) load a pickle
from every cell. So the names of extension types are hidden before Arrow sees the footer, at every depth: it
then reads what they are stored as.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import inspect
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.processor.input.schema import HIDDEN_EXTENSION

#: Where Arrow keeps its types, and the same under a name that it does not look for.
_SCHEMA, _HIDDEN_SCHEMA = b"ARROW:schema", b"ARROW-schema"
_EXTENSION = b"ARROW:extension:name"
#: `_EXTENSION` in base64, at each of the three places that it can begin at in a group.
_EXTENSION_IN_BASE64 = [
    base64.b64encode(b"x" * shift + _EXTENSION)[-(-shift * 8 // 6) : (shift + len(_EXTENSION)) * 8 // 6]
    for shift in range(3)
]
_MAGIC = b"PAR1"
#: Enough for most footers: one read.
_FIRST_READ_BYTES = 64 << 10
#: Parquet's own UUIDs and JSON are extension types, too, for the newer versions of Arrow.
_OPTIONS: dict[str, Any] = (
    {"arrow_extensions_enabled": False}
    if "arrow_extensions_enabled" in inspect.signature(pq.ParquetFile).parameters
    else {}
)


def open_parquet(file: pa.NativeFile, size: int) -> tuple[pq.ParquetFile, str]:
    """Returns the file, with extension types as what they are stored as, and a hash of its footer.

    :raises pa.ArrowInvalid: for a file that is not Parquet, or whose footer is damaged.
    """
    footer = _read_footer(file, size)
    digest = hashlib.sha256(footer).hexdigest()[:16]
    return pq.ParquetFile(file, metadata=_parse(_without_extensions(footer)), **_OPTIONS), digest


def _read_footer(file: pa.NativeFile, size: int) -> bytes:
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


def _parse(footer: bytes) -> pq.FileMetaData:
    """Parses a footer that names no extension type."""
    whole = b"".join([_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC])
    return pq.ParquetFile(pa.BufferReader(whole), **_OPTIONS).metadata


def _without_extensions(footer: bytes) -> bytes:
    """Returns a footer of the same length whose `ARROW:schema` names no extension type."""
    if _SCHEMA not in footer or not any(text in footer for text in _EXTENSION_IN_BASE64):
        return footer
    if _HIDDEN_SCHEMA in footer:
        raise pa.ArrowInvalid(f"its footer holds {_HIDDEN_SCHEMA.decode()}")
    # Parsing alone tells which bytes are the schema: the footer may hold the same bytes elsewhere.
    found = (_parse(footer.replace(_SCHEMA, _HIDDEN_SCHEMA)).metadata or {}).get(_HIDDEN_SCHEMA)
    if found is None:
        return footer
    try:
        schema = base64.b64decode(found).replace(_EXTENSION, HIDDEN_EXTENSION)
    except binascii.Error as e:
        raise pa.ArrowInvalid(f"its {_SCHEMA.decode()} is damaged: {e}") from e
    hidden = base64.b64encode(schema)
    harmless = footer.replace(found, hidden)
    kept = (_parse(harmless.replace(_SCHEMA, _HIDDEN_SCHEMA)).metadata or {}).get(_HIDDEN_SCHEMA)
    if len(harmless) != len(footer) or kept != hidden:
        raise pa.ArrowInvalid(f"its {_SCHEMA.decode()} is damaged")
    return harmless
