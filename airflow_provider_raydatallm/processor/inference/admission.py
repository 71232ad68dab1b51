"""Admission: a job starts its engine only when everything that the engine needs is free at once.

Ray Data's actor pools start their workers one by one. Two jobs that each need more than half of a cluster
could each hold a part of it and wait for ever. So one job at a time starts its engine:

- The *lock* for starting is a mark that one job at a time has, and that ends with it, however the job dies.
- The job with the lock requests one placement group for all its resources: all or nothing, and visible to
  autoscalers as demand. Once the group is there, the engine starts in its place. The job releases the lock as
  soon as the engine's actors hold their resources.
- A waiting job holds a *ticket*, a mark too, named after the time. The oldest ticket gets the lock next, so
  that small jobs do not starve a big one.

A job whose engine already answers holds its resources and does not queue again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.ray_runtime.job_state import held_resources
from airflow_provider_raydatallm.processor.ray_runtime.marks import Mark, marks, try_lock
from airflow_provider_raydatallm.processor.sizing.facts import Resources
from airflow_provider_raydatallm.processor.sizing.parallel import type_share

_LOCK = "turn"
_TICKET = "ticket "
_POLL_SECONDS = 1
_WATCH_SECONDS = 0.5
#: Seconds for an engine to request its actors; after that the lock is released.
_START_SECONDS = 60.0


def admit(
    engine: Engine,
    *,
    name: str,
    timeout_s: float,
    on_wait: Callable[[dict[str, Any]], None],
    make_room: Callable[[], None],
) -> QueueSlot:
    """Waits until everything that an engine needs is free at once, and returns the slot. The caller starts
    the engine, and releases the slot when the engine answers or fails.

    :param name: the name of this job for those that wait behind it.
    :param on_wait: called every second of waiting with the seconds `waited_s`, the resources it `needs`,
        those that are `free`, and the jobs `ahead`.
    :param make_room: called while this job has the lock and there is no room.
    :raises SliceError: of kind `queue`, when there was no room in time.
    """
    from ray.util import placement_group, remove_placement_group

    began = time.monotonic()
    slot, group = QueueSlot(name, engine), None
    needs: Resources | None = None
    try:
        while True:
            # Another job may have started or stopped an engine that this one shares.
            if (current := engine.resources_needed_now) != needs and group is not None:
                remove_placement_group(group)
                group = None
            needs = current
            bundles = bundles_of(needs, engine.job.engine.gpu)
            if not bundles:
                break
            blocking: list[str] = []
            if slot.try_acquire():
                blocking = engine.blocking_engines()
                if not blocking:
                    group = group or placement_group(bundles, strategy="PACK")
                    if group.wait(_POLL_SECONDS):
                        break
                make_room()
            else:
                time.sleep(_POLL_SECONDS)
            slot.enqueue()
            ahead = slot.jobs_ahead() or blocking
            if not ahead and group is None:
                ahead = ["a job that starts its engine"]
            waiting = _waiting(needs, time.monotonic() - began, ahead)
            if waiting["waited_s"] >= timeout_s:
                raise _timeout_error(needs, waiting)
            on_wait(waiting)
    except BaseException:
        slot.release()
        raise
    finally:
        if group is not None:
            remove_placement_group(group)
    slot.release_when_started(needs)
    return slot


@dataclass
class QueueSlot:
    """A job's place in the queue, and the lock once it has that."""

    name: str
    engine: Engine
    _lock: Mark | None = None
    _ticket: Mark | None = None
    _ticket_name: str = ""
    _released: threading.Event = field(default_factory=threading.Event)

    def try_acquire(self) -> bool:
        """Takes the lock if it is free and no job waits for longer; returns whether this job has it."""
        if self._lock is None and not self.jobs_ahead():
            self._lock = try_lock(_LOCK)
        return self._lock is not None

    def enqueue(self) -> None:
        """Takes a ticket, once."""
        if self._ticket is None:
            self._ticket_name = f"{time.time():017.6f} {self.name}"
            self._ticket = Mark.set(_TICKET + self._ticket_name)

    def jobs_ahead(self) -> list[str]:
        """Returns the names of the jobs that wait for longer."""
        tickets = marks(_TICKET)
        return [t.split(" ", 1)[1] for t in tickets if not self._ticket_name or t < self._ticket_name]

    def release_when_started(self, needs: Resources) -> None:
        """Releases the slot in the background, when the engine has its resources."""
        threading.Thread(target=self._watch, args=(needs,), name="admission", daemon=True).start()

    def release(self) -> None:
        self._released.set()
        # The lock last: the next job must not see the ticket of a job that is gone.
        for mark in (self._ticket, self._lock):
            if mark is not None:
                mark.remove()
        self._lock = self._ticket = None

    def _watch(self, needs: Resources) -> None:
        began, settled = time.monotonic(), 0
        while not self._released.wait(_WATCH_SECONDS):
            late = time.monotonic() - began > _START_SECONDS
            try:
                held, pending = held_resources(self.engine.shared_actor_prefix)
            except Exception:  # no dashboard
                held, pending = {}, 0
            complete = bool(held) and not pending and held.get("GPU", 0) >= needs.gpus
            # Twice in a row: a pipeline requests its actors one after another.
            settled = settled + 1 if self.engine.is_ready or complete else 0
            if settled == 2 or (late and not pending):
                self.release()


def bundles_of(needs: Resources, accelerator_type: str | None) -> list[dict[str, float]]:
    """Splits the resources into the smallest bundles: GPUs that belong on one node, with a CPU, then CPUs,
    with the memory of a worker."""
    bundles: list[dict[str, float]] = []
    cpus = needs.cpus
    for share in _ones(needs.gpus / needs.gpus_on_one_node):
        bundle = {"GPU": share * needs.gpus_on_one_node} | type_share(accelerator_type)
        if cpus > 0:
            bundle["CPU"] = min(1.0, cpus)
            cpus = round(cpus - bundle["CPU"], 4)
        bundles.append(bundle)
    bundles += [{"CPU": n} for n in _ones(cpus)]
    for bundle, memory in zip(bundles, needs.memory, strict=False):
        bundle["memory"] = memory
    return bundles


def _ones(amount: float) -> list[float]:
    """Splits an amount into ones and a remainder; Ray counts in ten-thousandths."""
    rest = round(amount % 1, 4)
    return [1.0] * int(amount) + [rest] * (rest > 0)


def _waiting(needs: Resources, waited_s: float, ahead: list[str]) -> dict[str, Any]:
    import ray

    free = ray.available_resources()
    amounts = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": sum(needs.memory)}
    needed = {name: amount for name, amount in amounts.items() if amount}
    return {
        "waited_s": round(waited_s, 1),
        "needs": needed,
        "free": {name: round(free.get(name, 0), 4) for name in needed},
        "ahead": ahead,
    }


def _timeout_error(needs: Resources, waiting: dict[str, Any]) -> SliceError:
    from airflow_provider_raydatallm.contract.log.progress_text import waiting_text

    return SliceError(
        f"there was no room on the cluster within limits.queue: {waiting_text(waiting)} ({needs.breakdown})",
        kind="queue",
        advice=(
            "Nothing was started",
            "Raise limits.queue, add nodes, or lower engine.workers or the number of concurrent runs "
            "(max_active_runs, a pool)",
        ),
    )
