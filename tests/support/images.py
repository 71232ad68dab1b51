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


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_with(*chunks: bytes) -> bytes:
    """A PNG of a few pixels with chunks before them."""
    file = image_file(8, 8, kind="PNG")
    return file[:33] + b"".join(chunks) + file[33:]


def jpeg_with_scans(scans: int, size: int = 64, *, after: bytes = b"") -> bytes:
    """A progressive JPEG that repeats its last scan.

    :param after: bytes that follow the image.
    """
    file = save(Image.new("L", (size, size), 100), "JPEG", progressive=True)
    last = file[file.rindex(b"\xff\xda") : -2]
    return file[:-2] + last * scans + file[-2:] + after


def tiled_tiff(side: int) -> bytes:
    """A TIFF of 10 x 10 pixels in a tile of another size."""
    data = zlib.compress(bytes(10_000))
    tags = [
        (256, 10), (257, 10), (258, 8), (259, 8), (262, 1), (277, 1), (322, side), (323, side), (324, 200),
        (325, len(data)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    file = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    return file.ljust(200, b"\0") + data


def lying_avif(announced: int, size: int) -> bytes:
    """An AVIF that holds more pixels than it announces."""
    file = save(Image.new("RGB", (size, size), "red"), "AVIF", speed=10)
    place = file.index(b"ispe") + 8
    return file[:place] + struct.pack(">II", announced, announced) + file[place + 8 :]


def announced_png(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and holds next to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100)
    chunks = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", pixels), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


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
