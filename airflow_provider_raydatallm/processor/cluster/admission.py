"""Admission: a job starts its engine only when all that the engine needs is free at once.

Ray Data's actor pools take their workers one by one. Two jobs that each need more than half of a cluster
could each hold a part of it, and both would wait for ever. So between "there is room" and "the engine has it"
one job at a time has the *turn*:

- The turn is an actor of a fixed name. Ray makes one of a name at most, and ends it with its job, however
  that dies.
- In its turn a job asks for a placement group of all that it needs: all or nothing, and seen by autoscalers
  as demand. When that is there, the engine starts in its place, and the turn is given up as soon as the
  engine's actors hold what they asked for.
- A job that has to wait holds a *ticket*, an actor as well, named after the time. The first ticket is the
  next to have the turn, so a big job is not starved by small ones that would fit before it.

Jobs that answer already hold all that they need at least, have no part in this, and go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.ray_runtime.named_actors import create_named_actor, named_actors
from airflow_provider_raydatallm.processor.sizing.facts import Resources

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_TURN = "turn"
_TICKET = "ticket "
_LOOK_SECONDS = 1
_WATCH_SECONDS = 0.5
#: Seconds that an engine has to ask for actors; one that starts none, or late, holds the turn no longer.
_START_SECONDS = 60.0
#: How Ray counts an accelerator's type: a node has one of it, whatever its GPUs.
_TYPE_SHARE = 0.001
_ANY = 10_000


def admit(
    engine: Engine,
    *,
    name: str,
    timeout: float,
    say: Callable[[dict[str, Any]], None],
    make_room: Callable[[], None],
) -> QueueSlot:
    """Wait until all that an engine needs is free at once. The caller starts the engine and gives the turn up
    when it answers, or fails.

    :param name: what those who wait behind this job call it.
    :param timeout: seconds.
    :param say: told about every second of waiting: seconds `waited_s`, what it `needs`, what is `free`, and
        who is `ahead`.
    :param make_room: called while it is this job's turn and there is no room.
    :raises SliceError: of kind `queue`, when there was no room in time.
    """
    from ray.util import placement_group, remove_placement_group

    began = time.monotonic()
    turn, group = QueueSlot(name, engine), None
    needs: Resources | None = None
    try:
        while True:
            # Another job may have started, or ended, an engine that this one shares.
            if (now := engine.resources_needed_now) != needs and group is not None:
                remove_placement_group(group)
                group = None
            needs = now
            bundles = bundles_of(needs, engine.job.accelerator_type)
            if not bundles:
                break
            in_the_way: list[str] = []
            if turn.try_acquire():
                in_the_way = engine.blocking_engines()
                if not in_the_way:
                    group = group or placement_group(bundles, strategy="PACK")
                    if group.wait(_LOOK_SECONDS):
                        break
                make_room()
            else:
                time.sleep(_LOOK_SECONDS)
            turn.enqueue()
            ahead = turn.jobs_ahead() or in_the_way
            if not ahead and group is None:
                ahead = ["a job that starts its engine"]
            waiting = _waiting(needs, time.monotonic() - began, ahead)
            if waiting["waited_s"] >= timeout:
                raise _too_late(needs, waiting)
            say(waiting)
    except BaseException:
        turn.release()
        raise
    finally:
        if group is not None:
            remove_placement_group(group)
    turn.release_when_started(needs)
    return turn


@dataclass
class QueueSlot:
    """A job's place in the queue, and its turn when that has come."""

    name: str
    engine: Engine
    _turn: ActorHandle[Any] | None = None
    _ticket: ActorHandle[Any] | None = None
    _ticket_name: str = ""
    _given_up: threading.Event = field(default_factory=threading.Event)

    def try_acquire(self) -> bool:
        """Whether it is this job's turn: nobody waits for longer, and nobody has it."""
        if self._turn is None and not self.jobs_ahead():
            self._turn = create_named_actor(_TURN)
        return self._turn is not None

    def enqueue(self) -> None:
        """Have the others see that this job waits."""
        if self._ticket is None:
            self._ticket_name = f"{time.time():017.6f} {self.name}"
            self._ticket = create_named_actor(_TICKET + self._ticket_name)

    def jobs_ahead(self) -> list[str]:
        """Names of the jobs that wait for longer."""
        tickets = named_actors(_TICKET)
        return [t.split(" ", 1)[1] for t in tickets if not self._ticket_name or t < self._ticket_name]

    def release_when_started(self, needs: Resources) -> None:
        """Give the turn up, in the background, when the engine has what it needs."""
        threading.Thread(target=self._watch, args=(needs,), name="admission", daemon=True).start()

    def release(self) -> None:
        import ray

        self._given_up.set()
        # The turn last: who comes next must not see a ticket of a job that has gone.
        for actor in (self._ticket, self._turn):
            if actor is not None:
                ray.kill(actor)
        self._turn = self._ticket = None

    def _watch(self, needs: Resources) -> None:
        began, settled = time.monotonic(), 0
        while not self._given_up.wait(_WATCH_SECONDS):
            late = time.monotonic() - began > _START_SECONDS
            try:
                held, pending = _engine_actors(self.engine.shared_actor_prefix)
            except Exception:  # no dashboard to ask
                held, pending = {}, 0
            has = self.engine.is_ready or (bool(held) and not pending and held.get("GPU", 0) >= needs.gpus)
            # Twice: the actors of a pipeline are asked for one after the other.
            settled = settled + 1 if has else 0
            if settled == 2 or (late and not pending):
                self.release()


def bundles_of(needs: Resources, accelerator_type: str | None) -> list[dict[str, float]]:
    """What is needed in pieces that fit on any node: a GPU with a CPU to it each, and CPUs."""
    bundles: list[dict[str, float]] = []
    cpus = needs.cpus
    for gpus in _ones(needs.gpus):
        bundle = {"GPU": gpus}
        if cpus > 0:
            bundle["CPU"] = min(1.0, cpus)
            cpus = round(cpus - bundle["CPU"], 4)
        if accelerator_type is not None:
            bundle[f"accelerator_type:{accelerator_type}"] = _TYPE_SHARE
        bundles.append(bundle)
    return bundles + [{"CPU": n} for n in _ones(cpus)]


def _ones(amount: float) -> list[float]:
    """The amount in ones, and what is left of it; Ray counts in ten-thousandths."""
    rest = round(amount % 1, 4)
    return [1.0] * int(amount) + [rest] * (rest > 0)


def _engine_actors(shared: str | None) -> tuple[dict[str, float], int]:
    """What this job's actors and placement groups hold, and how many of them still wait for theirs.

    :param shared: how the names of actors begin that it has with others.
    """
    import ray
    from ray.util.state import list_actors, list_placement_groups

    job = ray.get_runtime_context().get_job_id()
    held: dict[str, float] = {}
    pending = 0
    asked: list[tuple[bool, list[dict[str, float]]]] = []
    actors = list_actors(detail=True, limit=_ANY, filters=[("job_id", "=", job)])
    if shared is not None:
        serving = list_actors(detail=True, limit=_ANY, filters=[("ray_namespace", "=", "serve")])
        actors += [a for a in serving if a.name.startswith(shared) and a.job_id != job]
    for actor in actors:
        # A process means that it has its resources; alive it is when its model is loaded.
        if actor.state != "DEAD" and actor.required_resources and not actor.placement_group_id:
            asked.append((bool(actor.pid), [actor.required_resources]))
    for group in list_placement_groups(detail=True, limit=_ANY, filters=[("creator_job_id", "=", job)]):
        if group.state != "REMOVED":
            asked.append((group.state == "CREATED", [b["unit_resources"] for b in group.bundles or []]))
    for has, amounts in asked:
        pending += not has
        for resource, amount in (item for a in amounts for item in a.items() if has):
            held[resource] = held.get(resource, 0) + amount
    return held, pending


def _waiting(needs: Resources, waited: float, ahead: list[str]) -> dict[str, Any]:
    import ray

    free = ray.available_resources()
    wants = {"CPU": needs.cpus, "GPU": needs.gpus}
    return {
        "waited_s": round(waited, 1),
        "needs": {name: amount for name, amount in wants.items() if amount},
        "free": {name: round(free.get(name, 0), 4) for name, amount in wants.items() if amount},
        "ahead": ahead,
    }


def _too_late(needs: Resources, waiting: dict[str, Any]) -> SliceError:
    from airflow_provider_raydatallm.contract.progress_text import waiting_text

    return SliceError(
        f"there was no room on the cluster within queue_timeout: {waiting_text(waiting)} "
        f"({needs.breakdown}). Nothing was started, and finished rows are kept. Raise queue_timeout, add "
        "nodes, or lower concurrency or the number of runs at once (max_active_runs, a pool)",
        kind="queue",
    )
