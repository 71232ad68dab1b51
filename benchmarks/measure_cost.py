"""What measuring costs a run: the gauges of a node, the summaries of what leaves the engine, and the watch.

Goal: under 1% of the CPUs that a run with one GPU holds, which are 5. The parts are the real ones, on a Ray
of this process's own; what counts is the time that they are on a CPU, in this process and in the writer's.
Gauges sample the node twice a second, a summary is made of each group of rows and added up in the driver, and
the watch looks at all there is once a second. The slice is one of 1,200 short rows/s, which one H200 answers,
in groups of 16.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.table import Figure, say, show

ROWS_PER_S = 1200
#: An eighth of a batch: the worker's least.
GROUP = 16
GOAL = 0.01
#: Of an engine worker, two feeders, a reader and a writer.
CPUS = 5
_GAUGE_SECONDS = 20
_TIMES = 300


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        from benchmarks.embedded import local_ray

        with local_ray(Path(folder)):
            gauges, watch, groups = _gauges(), _watch(folder), _groups()
    shares = {
        "gauges, 2 samples/s": gauges,
        "the watch, 1 look/s": watch,
        f"summaries, {ROWS_PER_S / GROUP:g} groups/s": groups * ROWS_PER_S / GROUP,
    }
    total = sum(shares.values())
    return show(
        [
            *(Figure(what, f"{share:.2%} of a core") for what, share in shares.items()),
            Figure("all", f"{total:.2%} of a core"),
            Figure(f"... of {CPUS}", f"{total / CPUS:.2%}", f"< {GOAL:.0%}", total / CPUS < GOAL),
        ]
    )


def _gauges() -> float:
    """CPU seconds a second of the gauges' thread."""
    from airflow_provider_raydatallm.processor.metrics.node_usage import NodeSampler

    gauges = NodeSampler()
    [thread] = [t for t in threading.enumerate() if t.name == "ray-llm-gauges"]
    say(f"gauges, for {_GAUGE_SECONDS} s")
    spent = _spent(lambda: time.sleep(_GAUGE_SECONDS), lambda: _on_cpu(f"self/task/{thread.native_id}"))
    assert len(gauges.taken()) > _GAUGE_SECONDS
    return spent / _GAUGE_SECONDS


def _watch(folder: str) -> float:
    """CPU seconds of a look, here and in the writer."""
    import ray

    from airflow_provider_raydatallm.processor.cluster.fragment_writers import FragmentWriters
    from airflow_provider_raydatallm.processor.cluster.stall import StallWatch
    from airflow_provider_raydatallm.processor.metrics.meter import Meter, finished_rows

    writers = FragmentWriters.start(f"{folder}/slice", "_checkpoint", ["unit"], 1)
    [(_, handle)] = writers._by_node.items()
    pid = ray.get(handle.__ray_call__.remote(lambda writer: __import__("os").getpid()))
    meter, stall = Meter(10**9, 0), StallWatch(10**9, 1e9, lambda: True, lambda: "")

    def looks() -> None:
        for _ in range(_TIMES):
            news = writers.updates()
            meter.add(news)
            stall.observe(finished_rows(news), True)

    looks()
    say(f"{_TIMES} looks")
    spent = _spent(looks, lambda: _process_on_cpu("self") + _process_on_cpu(pid))
    writers.stop()
    return spent / _TIMES


def _groups() -> float:
    """CPU seconds of a group's summary, where it is made and where it is added up."""
    import pyarrow as pa

    from airflow_provider_raydatallm.processor.engines.base import answer_table
    from airflow_provider_raydatallm.processor.metrics.meter import Meter, WriterUpdate, summarize_group

    n, now = GROUP, time.time()
    ids: dict[str, Any] = {"__unit": pa.array([0] * n, pa.int32()), "__offset": range(n)}
    answers = answer_table(
        pa.table({**ids, "__request": ["{}"] * n}), text=["Law Firm"] * n, input_tokens=[80] * n,
        output_tokens=[16] * n, worker=["w"] * n, engine_seconds=[0.5] * n, finished_at=[now] * n,
    )  # fmt: skip
    rows = pa.table({**ids, "answer": ["Law Firm"] * n})
    failed = rows.slice(0, 0)
    meter = Meter(10**9, 0)

    def groups() -> None:
        for _ in range(_TIMES):
            meter.add(WriterUpdate([summarize_group(answers, rows, failed)]))

    groups()
    say(f"{_TIMES} summaries")
    return _spent(groups, time.thread_time) / _TIMES


def _spent(work: Callable[[], None], clock: Callable[[], float]) -> float:
    before = clock()
    work()
    return clock() - before


def _process_on_cpu(pid: int | str) -> float:
    return sum(_on_cpu(f"{pid}/task/{task.name}") for task in Path(f"/proc/{pid}/task").iterdir())


def _on_cpu(thread: str) -> float:
    """Seconds that a thread has been on a CPU, which Linux counts in nanoseconds."""
    return int(Path(f"/proc/{thread}/schedstat").read_text().split()[0]) / 1e9
