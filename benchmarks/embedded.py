"""A local Ray cluster for cases whose driver is this process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def local_ray(folder: Path, cpus: int = 8) -> Iterator[None]:
    """:param cpus: logical CPUs, by which Ray schedules; the machine may have fewer."""
    import ray
    from ray.data import DataContext

    options = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(folder / "ray")}
    ray.init("local", logging_level="warning", **options)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield
    finally:
        ray.shutdown()


class Workers:
    """Samples the memory and CPU time of all Ray workers under this process."""

    def __init__(self) -> None:
        self._peak = 0.0
        self._cpu: dict[int, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def peak_mb(self) -> float:
        """Returns the resident peak of all workers together, without the shared object store."""
        return self._peak

    def cpu_seconds(self) -> float:
        """Includes workers that ended, up to their last sample."""
        return sum(self._cpu.values())

    def _watch(self) -> None:
        import psutil

        while True:
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("ray::"):
                        memory, cpu = process.memory_info(), process.cpu_times()
                        total += memory.rss - memory.shared
                        self._cpu[process.pid] = cpu.user + cpu.system
                except psutil.Error:
                    continue
            self._peak = max(self._peak, total / 2**20)
            time.sleep(0.25)
