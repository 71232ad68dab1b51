"""Checks an image file, decodes it and makes it small enough.

What a file announces is compared with limits before any pixel is decoded: pixels, sides, and how often each
is decoded. Of an animation the first frame counts; what is see-through shows white.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import threading
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium, RowAllowances
from airflow_provider_raydatallm.processor.media.shrink import shrink

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

#: Readers of other formats are less tried, and one of them runs PostScript.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
#: A quarter of a gigabyte of RGB; Pillow warns above it.
_MOST_PIXELS = (1 << 30) // 4 // 3
#: What JPEG can have. Memory for a row of pixels is taken several times, and for each row a little.
_LONGEST_SIDE = 65_535
#: So many scans of a progressive JPEG take as long as its pixels in another format, and at least as long as
#: those of a small image.
_SCANS, _PIXELS_OF_SCAN = 8, 1 << 14
#: Larger ones are decoded one at a time: one of the largest takes 1.5 GB.
_LARGE_PIXELS = _MOST_PIXELS // 4
_LARGE = threading.Lock()
_ORIENTATION = 0x0112
_TIFF_COMPRESSION, _TIFF_TILE_SIDES, _TIFF_OFFSETS = 259, (322, 323), (273, 324)
_TIFF_JPEG = (6, 7)
_START_OF_SCAN = b"\xff\xda"
#: What ends a scan: a marker that is no restart. Other 0xFF bytes in it are followed by 0x00.
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def decode_image(data: bytes, max_pixels: int, row: RowAllowances | None = None) -> Medium:
    """Returns an image as rows of RGB pixels, the right way up.

    :raises InvalidMedia: naming what is wrong with it.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise InvalidMedia("the image is empty: 0 bytes")
    Image.init()  # by itself, Pillow finds the commonest formats only
    try:
        formats = [name for name in _FORMATS if name in Image.OPEN]
        with Image.open(io.BytesIO(data), formats=formats) as image:
            size = _check(image, data, max_pixels, row or RowAllowances())
            is_large = math.prod(image.size) > _LARGE_PIXELS
            with _LARGE if is_large else contextlib.nullcontext():
                return _decode(image, size)
    except InvalidMedia:
        raise
    except Image.DecompressionBombError:  # over twice the limit, Pillow does not open it
        raise InvalidMedia(f"the image has over {_MOST_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise InvalidMedia(
            f"the file is not an image that can be read ({', '.join(_FORMATS)}): it begins with {data[:16]!r}"
        ) from None
    except Exception as e:  # readers raise any type
        raise InvalidMedia(f"the image is damaged: {e or type(e).__name__}") from e


def _check(image: Image, data: bytes, max_pixels: int, row: RowAllowances) -> tuple[int, int]:
    """Returns the size that a model is shown.

    :raises InvalidMedia: for an image that takes too much to decode, alone or with the row's others.
    """
    width, height = image.size
    scans, tile = 0, 1
    if image.format in ("JPEG", "MPO"):
        scans = _count_scans(data)
    elif image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        tile = math.prod(max(1, int(tags.get(side, 1))) for side in _TIFF_TILE_SIDES)
        if tags.get(_TIFF_COMPRESSION) in _TIFF_JPEG:
            pieces = sum(len(tags.get(offsets, ())) for offsets in _TIFF_OFFSETS)
            scans = -(-data.count(_START_OF_SCAN) // max(1, pieces))
    if width * height > _MOST_PIXELS or max(width, height) > _LONGEST_SIDE:
        raise InvalidMedia(
            f"the image has {width:,} x {height:,} pixels, over {_MOST_PIXELS:,} in all or "
            f"{_LONGEST_SIDE:,} on a side"
        )
    if tile > _MOST_PIXELS:
        raise InvalidMedia(f"the image is cut into tiles of {tile:,} pixels, over {_MOST_PIXELS:,}")
    row.pixels.take(max(width * height, tile, _PIXELS_OF_SCAN) * (1 + scans // _SCANS))
    size = _fitting(width, height, max_pixels)
    row.media_bytes.take(math.prod(size) * 3)
    return size


def _count_scans(data: bytes) -> int:
    """The scans of a JPEG's first image, each of which decodes all of its pixels once more."""
    scans, place = 0, 2
    while (marker := data[place : place + 2]) and marker != b"\xff\xd9":
        if marker[:1] != b"\xff":
            found = data.find(b"\xff", place)  # bytes between segments, which decoders skip
            if found < 0:
                break
            place = found
            continue
        if marker[1:] in (b"\xff", b"\x01", b"") or b"\xd0" <= marker[1:] <= b"\xd8":
            place += 1 if marker[1:] == b"\xff" else 2  # without a segment
            continue
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == _START_OF_SCAN:
            scans += 1
            end = _AFTER_SCAN.search(data, place)
            place = end.start() if end else len(data)
    return scans


def _decode(image: Image, size: tuple[int, int]) -> Medium:
    from PIL import Image as images

    orientation = _read_orientation(image)
    if size != image.size and image.format in ("JPEG", "MPO"):
        image.draft(None, size)  # its decoder halves an image for less than nothing, and not below the size
    rgb = _to_rgb(image)
    pixels = np.asarray(rgb)
    if rgb.size != size:
        pixels = shrink(pixels, size)
    if orientation is not None:
        pixels = np.asarray(images.fromarray(pixels).transpose(orientation))
    return Medium("image", pixels.shape, pixels.tobytes())


def _fitting(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """The largest size of the same shape with so many pixels."""
    if width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    return max(1, int(width * scale)), max(1, int(height * scale))


def _read_orientation(image: Image) -> Transpose | None:
    """What turns it the right way up, by its EXIF data; None where that is damaged."""
    from PIL.Image import Transpose

    turns = (
        Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM, Transpose.TRANSPOSE,
        Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90,
    )  # fmt: skip
    with contextlib.suppress(Exception):
        return dict(enumerate(turns, start=2)).get(image.getexif()[_ORIENTATION])
    return None


def _to_rgb(image: Image) -> Image:
    from PIL import Image

    image.load()
    if image.mode == "F":
        raise InvalidMedia("the image has numbers with fractions for pixels, of no known range")
    if image.mode.startswith("I"):  # Pillow would cut all above 255
        pixels = np.asarray(image)
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise InvalidMedia("the image has pixels of more than 16 bits")
        return Image.fromarray((pixels >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        return white.convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
