"""Text files as the product unpacks them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

#: Codecs of Arrow by file suffix.
CODECS = {"": None, ".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
SUFFIXES = ["", "", "", "", ".gz", ".bz2", ".zst", ".lz4"]


def write_text(path: Path, data: bytes) -> None:
    codec = CODECS[path.suffix if path.suffix in CODECS else ""]
    if codec is None:
        path.write_bytes(data)
        return
    with pa.CompressedOutputStream(str(path), codec) as out:
        out.write(data)
