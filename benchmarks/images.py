"""Images that two cores check, decode and make smaller, in the threads of a feeder.

Goal: 200 a second of one megapixel. They are JPEGs with the detail of a photo, which the budgets make smaller
or leave as they are. Seconds are the threads' CPU time over two cores, so that others on the machine change
little; beside them stands what the clock said.
"""

from __future__ import annotations

import io
import time

import numpy as np

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.media.reader import MediaReader
from benchmarks.table import Figure, show
from tests.support.slice_jobs import spec

_WIDTH, _HEIGHT = 1152, 896
_IMAGES = 200
_GOAL = 200.0
_CORES = 2


def run() -> bool:
    files = [[_photo(seed)] for seed in range(8)] * (_IMAGES // 8)
    figures = [
        Figure("a file", f"{_WIDTH} x {_HEIGHT} pixels, {np.mean([len(f) for [f] in files]) / 1e3:,.0f} kB")
    ]
    for what, max_pixels in [("as they are", 1 << 20), ("to half", 1 << 19), ("to a fifth", 200_000)]:
        reader = MediaReader(_job(max_pixels))
        reader.decode(files[:8])
        began, cpu_began = time.perf_counter(), time.process_time()
        decoded = reader.decode(files)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        assert all(isinstance(media, list) for media in decoded)
        rate = len(files) * _CORES / cpu
        figures.append(
            Figure(
                f"images/s of {_CORES} cores, {what}",
                f"{rate:,.0f} ({len(files) / seconds:,.0f} by the clock)",
                f"{_GOAL:,.0f}",
                rate >= _GOAL,
            )
        )
    return show(figures)


def _photo(seed: int) -> bytes:
    from PIL import Image

    generator = np.random.default_rng(seed)
    shapes = generator.integers(0, 255, (_HEIGHT // 16, _WIDTH // 16, 3), dtype=np.uint8)
    smooth = Image.fromarray(shapes).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
    grain = generator.normal(0, 6, (_HEIGHT, _WIDTH, 3))
    pixels = (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def _job(max_pixels: int) -> SliceJob:
    required = dict.fromkeys(("slice_key", "input_path", "output_path", "model_source", "prompt"), "x")
    return spec(**required, images__column="photo", images__max_pixels=max_pixels)
