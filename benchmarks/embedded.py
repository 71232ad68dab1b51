"""A Ray cluster of this process's own, for cases whose driver is this process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def local_ray(folder: Path, cpus: int = 8) -> Iterator[None]:
    """:param cpus: logical: what Ray schedules by, not what the machine has."""
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
    """What the Ray workers under this process take together."""

    def __init__(self) -> None:
        self._peak = 0.0
        self._cpu: dict[int, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def peak_mb(self) -> float:
        """Resident at most, without the shared object store."""
        return self._peak

    def cpu_seconds(self) -> float:
        """Of those that ended as well, but for what they did since they were last looked at."""
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
