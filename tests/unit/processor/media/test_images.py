from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from PIL import Image

from airflow_provider_raydatallm.processor.media.images import decode_image
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium
from tests.support.images import BAD_IMAGES, announced_png, image_file, save

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
