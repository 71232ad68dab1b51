"""For how long a slice held the GPUs of a cluster that was made for it, and for what. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from airflow_provider_raydatallm.contract.base import Contract
from airflow_provider_raydatallm.contract.result.report import Report


@dataclass(frozen=True)
class HeldNode:
    """A node that is there for one task.

    :param scheduled: epoch seconds at which it got its GPUs.
    :param started: at which its image was there, and its first process began; None: not yet.
    """

    gpus: float
    scheduled: float
    started: float | None


class GpusHeld(Contract):
    """Seconds, times GPUs. `in_use` is the part of `inference` of those that had an engine; `total` is the
    sum of the others, by what the slice did meanwhile:

    image: a node's image was fetched.
    cluster: Ray started, and the other nodes came.
    job_start: Ray installed code and packages, and the job began.
    model: it was fetched and loaded.
    engine_start: the rest of the engine's start.
    publish: the rows were written.
    other: all else, such as checks, a wait for room, and the job's end until its task lets the cluster go.
    """

    total: float
    in_use: float
    image: float = 0.0
    cluster: float = 0.0
    job_start: float = 0.0
    model: float = 0.0
    engine_start: float = 0.0
    inference: float = 0.0
    publish: float = 0.0
    other: float = 0.0

    @classmethod
    def of(
        cls, nodes: Sequence[HeldNode], report: Report, job_start: float | None, now: float
    ) -> GpusHeld | None:
        """Returns None where no node has GPUs.

        :param report: of the slice.
        :param job_start: epoch seconds at which its job was submitted, if there was one.
        """
        if not nodes:
            return None
        phases = dict(_phases(report, job_start, now))
        held: dict[str, float] = {}
        for node in nodes:
            started = min(node.started or now, now)
            held["image"] = held.get("image", 0.0) + node.gpus * max(started - node.scheduled, 0.0)
            for name, (begin, end) in phases.items():
                held[name] = held.get(name, 0.0) + node.gpus * max(end - max(begin, started), 0.0)
        seconds = report.seconds
        of_engine = (seconds.engine_start or 0.0) + (seconds.inference or 0.0)
        engine_gpus = (report.gpu_seconds or 0.0) / of_engine if of_engine else 0.0
        in_use = min(engine_gpus * (seconds.inference or 0.0), held.get("inference", 0.0))
        rounded = {name: round(value, 3) for name, value in held.items()}
        return cls(total=round(sum(held.values()), 3), in_use=round(in_use, 3), **rounded)

    @property
    def idle_share(self) -> float:
        """From 0 to 1."""
        return 1 - self.in_use / self.total if self.total else 0.0

    def __str__(self) -> str:
        parts = [(name, value) for name, value in self if name not in ("total", "in_use") and value]
        spent = ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in parts)
        return f"GPUs held for {self.total:,.0f} s, {self.idle_share:.0%} of it idle: {spent}"


def _phases(report: Report, job_start: float | None, now: float) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yields them in their order, with begin and end, up to now."""
    seconds = report.seconds
    start = seconds.start
    before = (start.environment or 0.0) + (start.imports or 0.0) if start is not None else 0.0
    model = min((start.load or 0.0) if start is not None else 0.0, seconds.engine_start or 0.0)
    parts: list[tuple[str, float | None]] = []
    if job_start is not None and report.outcome not in (
        "unchanged",
        "kept",
        "attached",
    ):  # else of another job
        parts = [
            ("job_start", before),
            ("model", model),
            ("engine_start", (seconds.engine_start or 0.0) - model),
            ("inference", seconds.inference),
            ("publish", seconds.publish),
        ]
    until = min(job_start if job_start is not None else now, now)
    ends = [until]
    for _, length in parts:
        ends.append(min(ends[-1] + (length or 0.0), now))
    yield "cluster", (0.0, until)
    yield from zip([name for name, _ in parts], pairwise(ends), strict=True)
    yield "other", (ends[-1], now)
