"""Workers held by slices that may have 64 and 512 of them: all until the last row, all as long as there are
rows for them, and as many as finish in time.

A simulation in virtual time: which workers run decides the real code (`OwnWorkers.fit`, `lateness`), and each
runs paced (`gpu_pace`). One takes three minutes to start, as on a node that an autoscaler has to add. Answers
have 1 to 2,000 tokens, half of them under 33, and one in 2,000 has 12,000. Rows are given out in their order.
"""

from __future__ import annotations

import os
import random
from collections import deque
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.own_workers import OwnWorkers, _Worker
from airflow_provider_raydatallm.processor.metrics.deadline import lateness, workers_wanted
from airflow_provider_raydatallm.processor.metrics.meter import RecentRates, Totals
from airflow_provider_raydatallm.processor.sizing.facts import PastThroughput
from airflow_provider_raydatallm.processor.sizing.sizes import rows_in_flight
from benchmarks.gpu_pace import Pace, PacedBatching, PacedRow
from benchmarks.table import Figure, say, show

WORKERS = [int(n) for n in os.environ.get("BENCH_FIT_WORKERS", "64 512").split()]
#: Of a large model.
_PACE = Pace(max_num_seqs=256, step_s=60e-3, row_s=150e-6, prompt_token_s=100e-6)
_ROWS_EACH = rows_in_flight(_PACE.max_num_seqs, None)
#: For each of the workers that the slice may have.
_SHARE = 6_000
_START_S, _DEADLINE_S, _IDLE_S, _TICK_S, _FILLING_S = 180.0, 3_600.0, 10.0, 1.0, 60.0


class Simulated(_Worker):
    """With `clock`, the simulation's."""

    def __init__(self, name: str, clock: Simulation) -> None:
        self.name, self._clock, self.handle, self.error = name, clock, None, None
        self._ready_at, self.is_released, self.was_ready = None, True, False
        self.batching, self.rows, self.last_row_at = PacedBatching(_PACE), 0, 0.0
        self._began = self.held_s = self.longest_s = 0.0

    @property
    def can_be_released(self) -> bool:
        return True

    def start(self) -> None:
        self._began, self.is_released, self._ready_at = self._clock.now, False, None

    def is_idle(self) -> bool:
        return not self.rows and self._clock.now - self.last_row_at >= _IDLE_S

    def go_on(self, waiting: deque[PacedRow]) -> int:
        """Returns the rows that it finished in this second."""
        if self.is_released:
            return 0
        now, finished = self._clock.now, 0
        self.held_s += _TICK_S
        if self._ready_at is None:
            if now - self._began < _START_S:
                return 0
            self._ready_at, self.was_ready, self.last_row_at = now, True, now
        while waiting and self.rows < _ROWS_EACH:
            self.batching.add(waiting.popleft(), now)
            self.rows += 1
        while not self.batching.is_idle and self.batching.next_end() <= now:
            ended = self.batching.end_step()
            finished += len(ended)
            self.longest_s = max([self.longest_s, *(now - row.arrived for row in ended)])
        if finished:
            self.last_row_at = now
        self.rows -= finished
        return finished


class Simulation:
    def __init__(self, most: int) -> None:
        self.now = 0.0
        lengths = random.Random(5)
        self._rows = _SHARE * most
        self._waiting = deque(PacedRow(300, _answer_tokens(lengths)) for _ in range(self._rows))
        self._own: Any = OwnWorkers.__new__(OwnWorkers)
        self.workers = [Simulated(str(number), self) for number in range(most)]
        self._own._workers, self._own._fewest, self._own.repetition = self.workers, 2, []
        for worker in self.workers[:2]:
            worker.start()

    def run(self, finish_by: float | None, past: PastThroughput | None, *, lets_go: bool = True) -> None:
        left, most, first = self._rows, len(self.workers), 0.0
        recent, worker_s = RecentRates(), 0.0
        while left:
            self.now += _TICK_S
            left -= sum(worker.go_on(self._waiting) for worker in self.workers)
            worker_s += _TICK_S * sum(worker.rows > 0 for worker in self.workers)
            if left < self._rows:
                first = first or self.now
                recent.add(_START_S, self.now, Totals(self._rows - left, 0, worker_s))
            rates, is_known = recent.rates(), first and self.now - first > _FILLING_S
            progress = {
                "rows": self._rows - left, "planned": self._rows,
                "eta_s": left / rates.rows if is_known and rates.rows else None,
                "worker_rows_per_s": rates.rows_of_worker,
                "longest_row_s": max(worker.longest_s for worker in self.workers),
                "workers": sum(worker.was_ready for worker in self.workers),
                "engine_start_s": _START_S, "step": "answer" if first else "start",
            }  # fmt: skip
            wanted = None
            if finish_by is not None:
                wanted = workers_wanted(lateness(finish_by, self.now, progress, past, most))
            if lets_go or self.now < 2 * _TICK_S:
                self._own.fit(left, _ROWS_EACH, wanted)

    @property
    def held_s(self) -> float:
        return sum(worker.held_s for worker in self.workers)


def _answer_tokens(lengths: random.Random) -> int:
    return (
        12_000 if lengths.random() < 1 / 2_000 else min(2_000, max(1, int(lengths.lognormvariate(3.5, 1.4))))
    )


def run() -> bool:
    figures = []
    for most in WORKERS:
        everything = Simulation(most)
        everything.run(None, None, lets_go=False)
        rate = _SHARE / (everything.now - _START_S)
        say(f"{most}: all until the last row")
        for what, finish_by, past in (
            ("as long as there are rows", None, None),
            ("in an hour, rate unknown", _DEADLINE_S, None),
            ("in an hour, rate known", _DEADLINE_S, PastThroughput("earlier", rate, _START_S)),
        ):
            simulation = Simulation(most)
            simulation.run(finish_by, past)
            say(f"{most}: {what}")
            share = simulation.held_s / everything.held_s
            name, in_time = f"up to {most} workers, {what}", simulation.now <= _DEADLINE_S
            ran = sum(worker.was_ready for worker in simulation.workers)
            figures += [
                Figure(f"{name}: worker-hours, all until the last row = 1", f"{share:.2f}", "< 1", share < 1),
                Figure(
                    f"{name}: minutes, workers", f"{simulation.now / 60:.0f}, {ran}",
                    "" if finish_by is None else "<= 60 min", None if finish_by is None else in_time,
                ),
            ]  # fmt: skip
        figures.append(Figure(f"up to {most} workers, all: minutes", f"{everything.now / 60:.0f}"))
    return show(figures)
