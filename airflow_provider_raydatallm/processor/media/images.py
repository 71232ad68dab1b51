"""Checks an image file, decodes it and makes it small enough.

The pixels that a file announces are compared with a limit before any is decoded. Of an animation the first
frame counts; what is see-through shows white.
"""

from __future__ import annotations

import contextlib
import io
import math
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium
from airflow_provider_raydatallm.processor.media.shrink import shrink

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

#: Readers of other formats are less tried, and one of them runs PostScript.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
#: A quarter of a gigabyte of RGB; Pillow warns above it.
_MOST_PIXELS = (1 << 30) // 4 // 3
_ORIENTATION = 0x0112


def decode_image(data: bytes, max_pixels: int) -> Medium:
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
            return _decode(image, max_pixels)
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


def _decode(image: Image, max_pixels: int) -> Medium:
    from PIL import Image as images

    width, height = image.size
    if width * height > _MOST_PIXELS:
        raise InvalidMedia(f"the image has {width:,} x {height:,} pixels, over {_MOST_PIXELS:,} in all")
    orientation = _read_orientation(image)
    size = _fitting(width, height, max_pixels)
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
