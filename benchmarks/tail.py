"""How near the real path comes to an ideal when answers are of very different lengths.

Paced workers (`paced_worker`) run through the real path. The ideal is the same simulation with all rows at
once, in their order where lengths are unknown and longest first where they are known, as for vLLM's offline
`LLM.chat`. Workers run faster than real time; rates are those of a worker's own time.

- `tail`: 1% of the answers have 1,600 tokens, the others 20.
- `lognormal`: answers of 1 to 2,000 tokens, half of them under 33.
- `short`: all have 16.
- `tail, a worker stops`: two workers, of which one is stopped (SIGSTOP) for a while when it has finished half
  of its share. In the ideal its other rows go to the other worker at once.

The longest time without a finished row is told, too, with the rows that were finished before it: a barrier in
the path shows there, beside the end of the work, where few rows are left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fresh import fresh
from benchmarks.gpu_pace import Pace, PacedBatching, PacedRow, offline_seconds
from benchmarks.hidden_lengths import LENGTHS, hide_lengths
from benchmarks.paced_worker import PacedEngine, PacedWorker
from benchmarks.prompts import ROWS, SAMPLING, rows_of
from benchmarks.table import print_rows, say

if TYPE_CHECKING:
    from benchmarks.real_slice import Finished

#: A worker's seconds in a second. The path's own delays weigh by so much more.
SPEED = float(os.environ.get("BENCH_TAIL_SPEED", 2))
#: Of the rows of `prompts.ROWS`, for each worker.
SHARE = float(os.environ.get("BENCH_TAIL_SHARE", 1))
#: Of a slice in which none is stopped.
WORKERS = int(os.environ.get("BENCH_TAIL_WORKERS", 1))
#: Real seconds until a stopped worker goes on: longer than the others need.
STOPPED_S = float(os.environ.get("BENCH_TAIL_STOPPED_S", 30))
STOPS = "tail, a worker stops"
CASES = os.environ.get("BENCH_TAIL_CASES", f"tail;lognormal;short;{STOPS}").split(";")
#: Most of a prompt is in the prefix cache: rows are fast, and the path has the more to do.
PACE = Pace(cached=0.9)


def run() -> None:
    from benchmarks.model_folder import write_model_folder

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        write_model_folder(Path(folder, "model"))
        results = fresh(measure, folder).result
    table = []
    for case, lengths, prompt, real_s, pause_s, finished in results:
        rows = _rows(case)
        seconds, ideal = real_s * SPEED, ideal_seconds(rows, prompt, lengths, case)
        rates = [f"{len(rows) / s:,.0f}" for s in (ideal, seconds)]
        pause = [f"{pause_s * SPEED:.0f}", f"{finished:,}"]
        table.append([case, lengths, f"{len(rows):,}", *rates, f"{ideal / seconds:.3f}", *pause])
    header = ["work", "lengths", "rows", "ideal rows/s", "rows/s", "of ideal"]
    print_rows([*header, "longest s without a row", "after rows"], table)


def _rows(case: str) -> list[dict[str, Any]]:
    work = case.partition(",")[0]
    return rows_of(work, int(ROWS[work] * SHARE) * (1 if case == STOPS else WORKERS))


def ideal_seconds(rows: list[dict[str, Any]], prompt: int, lengths: str, case: str) -> float:
    """:param prompt: tokens of a prompt."""
    answers = [row["answer_tokens"] for row in rows]
    if lengths == "known":
        answers.sort(reverse=True)
    paced = [PacedRow(prompt, answer) for answer in answers]
    if case != STOPS:
        return max(offline_seconds(paced[worker::WORKERS], PACE) for worker in range(WORKERS))
    staying, stopped = PacedBatching(PACE), PacedBatching(PACE)
    for number, row in enumerate(paced):
        (stopped if number % 2 else staying).add(row)
    unfinished = set(paced[1::2])
    while len(unfinished) > len(paced) // 4:
        unfinished.difference_update(stopped.end_step())
    for row in paced[1::2]:
        if row in unfinished:
            staying.add(PacedRow(prompt, row.answer), stopped.now)
    while not staying.is_idle:
        staying.end_step()
    return staying.now


def measure(folder: str) -> list[tuple[str, str, int, float, float, int]]:
    """Returns case, lengths, tokens of a prompt, real seconds, and `_longest_pause` of each slice."""
    from benchmarks.embedded import local_ray

    results = []
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as ray, local_ray(Path(ray), 3 * WORKERS + 8):
        for case in CASES:
            for lengths in LENGTHS:
                results.append((case, lengths, *_measure(folder, case, lengths)))
                say(f"{case}, lengths {lengths}: {results[-1][3]:.1f} s")
    return results


def _measure(folder: str, case: str, lengths: str) -> tuple[int, float, float, int]:
    from benchmarks.real_slice import run_real_slice, write_rows

    rows, sampling = _rows(case), {"max_tokens": "{answer_tokens}"}
    if lengths == "unknown":
        rows, sampling = hide_lengths(rows)
    engine, config = "benchmarks.paced_worker:PacedEngine", {"pace": asdict(PACE), "speed": SPEED}
    if case == STOPS:
        engine = "benchmarks.tail:StoppedEngine"
        config["stop"] = {"rows": len(rows) // 4, "file": f"{folder}/{uuid.uuid4().hex}"}
    report, progress = run_real_slice(
        folder,
        write_rows(folder, rows),
        engine,
        SAMPLING | sampling,
        workers=2 if case == STOPS else WORKERS,
        config=config,
    )
    assert report.tokens.input is not None
    assert report.seconds.inference is not None
    prompt = round(report.tokens.input / len(rows))
    return prompt, report.seconds.inference, *_longest_pause(progress)


def _longest_pause(progress: Sequence[Finished]) -> tuple[float, int]:
    """Real seconds from one finished row to the next, and the rows before."""
    steps = [seen for seen, before in pairwise(reversed(progress)) if seen.rows > before.rows > 0][::-1]
    pauses = [(after.at - before.at, before.rows) for before, after in pairwise(steps)]
    return max(pauses, default=(0.0, 0))


class _StoppedWorker(PacedWorker):
    """Stops its own process for `STOPPED_S` after some rows, if it is the first one that has so many."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self._stop = arguments["additional_config"]["stop"]
        self._finished = 0

    async def _generate_row(self, tokens: list[int], params: str, user: str) -> dict[str, Any]:
        answer = await super()._generate_row(tokens, params, user)
        self._finished += 1
        if self._finished == self._stop["rows"]:
            with contextlib.suppress(FileExistsError):
                open(self._stop["file"], "x").close()
                subprocess.Popen(["sh", "-c", f"sleep {STOPPED_S}; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
        return answer


class StoppedEngine(PacedEngine):
    worker = _StoppedWorker
