from __future__ import annotations

import contextlib
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from airflow_provider_raydatallm.processor.media.images import decode_image
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium, RowAllowances
from tests.support.images import (
    BAD_IMAGES,
    announced_png,
    image_file,
    jpeg_with_scans,
    lying_avif,
    png_chunk,
    png_with,
    save,
    tiled_tiff,
)

ANY = 1 << 20


def pixels(medium: Medium) -> np.ndarray:
    return np.frombuffer(medium.data, np.uint8).reshape(medium.shape)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_formats_show_the_same_picture(kind: str) -> None:
    expected = pixels(decode_image(image_file(kind="PNG"), ANY)).astype(int)
    medium = decode_image(image_file(kind=kind), ANY)
    assert (medium.kind, medium.shape, medium.size) == ("image", (48, 64, 3), 48 * 64 * 3)
    assert np.abs(pixels(medium) - expected).mean() < 8


@pytest.mark.parametrize(("width", "height"), [(1152, 896), (896, 1152), (5000, 40), (3, 30_000)])
def test_large_image_fits_the_budget_in_its_own_shape(width: int, height: int) -> None:
    rows, columns, _ = decode_image(image_file(width, height), 50_000).shape
    assert 0.8 * min(50_000, width * height) < rows * columns <= 50_000
    assert abs(columns / rows / (width / height) - 1) < 0.3


def test_resized_picture_is_the_picture() -> None:
    whole = pixels(decode_image(image_file(1000, 800), ANY)).astype(int)
    small = pixels(decode_image(image_file(1000, 800), 8000)).astype(int)  # by the decoder's own halving, too
    assert np.abs(whole[::10, ::10] - small).mean() < 5


def test_small_image_stays_as_it_is() -> None:
    assert decode_image(image_file(5, 7, kind="PNG"), ANY).shape == (7, 5, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_image_is_the_right_way_up(orientation: int) -> None:
    upright = Image.new("RGB", (40, 20), "white")
    upright.paste("red", (0, 0, 20, 10))  # the upper left
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen = pixels(decode_image(save(stored, "PNG", exif=exif.tobytes()), ANY))
    assert (seen == np.asarray(upright)).all()


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"])
def test_damaged_exif_data_hides_no_image(exif: bytes) -> None:
    assert decode_image(image_file(exif=exif), ANY).shape == (48, 64, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_other_colours_become_rgb(mode: str) -> None:
    medium = decode_image(image_file(mode=mode, kind="PNG"), ANY)
    assert medium.shape == (48, 64, 3)
    assert 20 < pixels(medium).mean() < 235


def test_printed_colours_become_those_of_a_screen() -> None:
    seen = pixels(decode_image(save(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), ANY))
    assert (seen[4, 4] > (200, -1, -1)).all()
    assert (seen[4, 4] < (256, 60, 60)).all()


def test_what_is_see_through_shows_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    assert pixels(decode_image(save(image, "PNG"), ANY)).tolist() == [[[255, 0, 0], [255, 255, 255]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 255, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    seen = pixels(decode_image(save(palette, "PNG", transparency=1), ANY))
    assert seen.tolist() == [[[0, 0, 255], [255, 255, 255]]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_are_scaled_not_cut(kind: str) -> None:
    deep = Image.fromarray(np.array([[0, 0x4000, 0x8000, 0xFFFF]], np.uint16))
    assert pixels(decode_image(save(deep, kind), ANY))[0, :, 0].tolist() == [0, 64, 128, 255]


def test_more_than_16_bits_are_refused() -> None:
    deep = Image.fromarray(np.array([[0, 1 << 20]], np.int32))
    with pytest.raises(InvalidMedia, match="more than 16 bits"):
        decode_image(save(deep, "TIFF"), ANY)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_first_frame_of_an_animation_counts(kind: str) -> None:
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    file = save(first, kind, save_all=True, append_images=[second], lossless=True)
    assert pixels(decode_image(file, ANY))[4, 4].tolist() == pytest.approx([255, 0, 0], abs=3)


@pytest.mark.parametrize(("bad", "why"), [
    ("empty", "0 bytes"), ("text", "not an image that can be read .*<html>"), ("truncated", "damaged"),
    ("truncated_png", "damaged"), ("bomb", "over 89,478,485 pixels"), ("no_pixels", "not an image"),
    ("postscript", "not an image"), ("fractions", "fractions"),
])  # fmt: skip
def test_bad_file_is_refused_with_its_reason(bad: str, why: str) -> None:
    with pytest.raises(InvalidMedia, match=why):
        decode_image(BAD_IMAGES[bad], ANY)


def test_bomb_is_refused_before_its_pixels_are_decoded() -> None:
    tracemalloc.start()
    with pytest.raises(InvalidMedia, match="pixels, over"):
        decode_image(announced_png(10_000, 9_000), ANY)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("size", [(89_000_000, 1), (1, 89_000_000), (65_536, 1), (1, 65_536), (9460, 9460)])
def test_image_is_refused_for_a_side_as_for_its_pixels(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidMedia, match="pixels, over"):
        decode_image(announced_png(*size), ANY)


def test_images_of_a_row_share_what_is_decoded_and_what_is_kept() -> None:
    row, large = RowAllowances(), announced_png(9400, 9400)
    messages = []
    for _ in range(26):
        with pytest.raises(InvalidMedia) as e:
            decode_image(large, 1000, row)
        messages.append(str(e.value))
    assert all("damaged" in message for message in messages[:24])  # it is nothing but its header
    assert "pixels to decode together" in messages[-1]
    row = RowAllowances()
    for _ in range(2):
        with pytest.raises(InvalidMedia):
            decode_image(large, 1 << 30, row)
    with pytest.raises(InvalidMedia, match="bytes when decoded together"):
        decode_image(large, 1 << 30, row)


def test_progressive_jpeg_of_many_scans_is_refused_before_it_is_decoded() -> None:
    """16 bytes a scan, each of which goes over all pixels."""
    with pytest.raises(InvalidMedia, match="pixels to decode"):
        decode_image(jpeg_with_scans(200_000, 1000), ANY)
    in_tiff = save(Image.new("RGB", (64, 64)), "TIFF", compression="jpeg") + b"\xff\xda" * 2_000_000
    with pytest.raises(InvalidMedia, match="pixels to decode"):
        decode_image(in_tiff, ANY)
    video = np.random.default_rng(0).bytes(4 << 20) + b"\xff\xda" * 1000  # as phones append them
    for scans in (0, 50):
        assert decode_image(jpeg_with_scans(scans, after=video), ANY).shape == (64, 64, 3)


def test_tiff_whose_tile_is_far_larger_than_the_image_is_refused() -> None:
    assert decode_image(tiled_tiff(16), ANY).shape == (10, 10, 3)
    with pytest.raises(InvalidMedia, match="tiles of 900,000,000 pixels"):
        decode_image(tiled_tiff(30_000), ANY)


def test_avif_shows_no_more_than_it_announces() -> None:
    """What it holds is decoded all the same: docs/security.md says so."""
    assert decode_image(lying_avif(10, 500), ANY).shape == (10, 10, 3)


def test_frame_larger_than_its_animation_counts() -> None:
    file = save(Image.new("P", (400, 300)), "GIF")
    assert decode_image(file[:6] + b"\1\0\1\0" + file[10:], ANY).shape == (300, 400, 3)
    lying = file[:6] + b"\1\0\1\0" + file[10:].replace(b"\x90\1\x2c\1", b"\xff\xff\xff\xff", 1)
    with pytest.raises(InvalidMedia, match="pixels"):
        decode_image(lying, ANY)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_many_frames_take_no_more_than_one(kind: str) -> None:
    frames = [Image.new("RGB", (128, 128), (i, 0, 0)) for i in range(200)]
    file = save(frames[0], kind, save_all=True, append_images=frames[1:])
    row = RowAllowances()
    tracemalloc.start()
    decode_image(file, ANY, row)
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    row.pixels.take((1 << 31) - 128 * 128)
    with pytest.raises(InvalidMedia):
        row.pixels.take(1)


@pytest.mark.parametrize("bomb", [
    png_chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(64 << 20))),
    png_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(64 << 20))),
    png_chunk(b"iTXt", b"k\0\1\0\0\0" + zlib.compress(bytes(64 << 20))),
    png_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000))) * 100,
], ids=["profile", "text", "international text", "many texts"])  # fmt: skip
def test_compressed_text_and_profiles_are_not_inflated_beyond_limits(bomb: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(InvalidMedia):
        decode_image(png_with(bomb), ANY)
    assert tracemalloc.get_traced_memory()[1] < 160 << 20
    tracemalloc.stop()


def test_any_damage_is_invalid_media() -> None:
    generator = np.random.default_rng(1)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
        file = bytearray(image_file(kind=kind))
        for _ in range(30):
            broken = bytearray(file)
            for place in generator.integers(0, len(file), 8):
                broken[place] = int(generator.integers(0, 256))
            try:
                decode_image(bytes(broken), 1000)
            except InvalidMedia:
                continue
