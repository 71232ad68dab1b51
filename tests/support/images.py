"""Image files, good and bad, as tables hold them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def image_file(
    width: int = 64, height: int = 48, *, mode: str = "RGB", kind: str = "JPEG", seed: int = 0, **options: Any
) -> bytes:
    """A file of smooth random colours, as photos are."""
    small = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    return save(image, kind, **options)


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def announced_png(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


#: Files that no model can be shown, by what is wrong with them.
BAD_IMAGES: dict[str, bytes] = {
    "empty": b"",
    "text": b"<html>not found</html>",
    "truncated": image_file()[:300],
    "truncated_png": image_file(kind="PNG")[:300],
    "bomb": announced_png(60_000, 60_000),
    "no_pixels": announced_png(0, 10),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "fractions": save(Image.new("F", (8, 8), 0.5), "TIFF"),
}
