from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from airflow_provider_raydatallm.processor.media.shrink import shrink


@pytest.mark.parametrize("factor", [1.05, 1.4, 1.9, 2, 2.5, 5.3])
def test_small_picture_is_that_of_pillow(factor: float) -> None:
    generator = np.random.default_rng(1)
    blobs = Image.fromarray(generator.integers(0, 256, (70, 90, 3), np.uint8)).resize((1151, 895))
    size = int(1151 / factor), int(895 / factor)
    expected = np.asarray(blobs.resize(size, Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(shrink(np.asarray(blobs), size) - expected).mean() < 1.5


@pytest.mark.parametrize("factor", [1.8, 2, 3, 4.7])
def test_stripes_too_fine_to_be_seen_become_grey(factor: float) -> None:
    stripes = np.zeros((400, 500, 3), np.uint8)
    stripes[:, ::2] = 255
    small = shrink(stripes, (int(500 / factor), int(400 / factor)))[4:-4, 4:-4]
    assert abs(small.mean() - 127.5) < 3
    assert small.std() < 25  # of 127 before


@pytest.mark.parametrize("size", [(500, 1), (1, 400), (1, 1), (250, 400), (499, 399)])
def test_any_size_that_is_asked_for_comes_out(size: tuple[int, int]) -> None:
    assert shrink(np.zeros((400, 500, 3), np.uint8), size).shape == (size[1], size[0], 3)
