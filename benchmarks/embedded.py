"""A Ray cluster of this process's own, for cases whose driver is this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def local_ray(folder: Path, cpus: int = 8) -> Iterator[None]:
    """:param cpus: logical: what Ray schedules by, not what the machine has."""
    import ray
    from ray.data import DataContext

    ray.init(num_cpus=cpus, include_dashboard=False, logging_level="warning", _temp_dir=str(folder / "ray"))
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield
    finally:
        ray.shutdown()
