"""State of this job's actors, tasks and placement groups, from Ray's state API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_LIMIT = 10_000
#: Seconds for a look that is one of many.
_LOOK_TIMEOUT_S = 10
_LOOK: dict[str, Any] = {
    "detail": True, "limit": _LIMIT, "timeout": _LOOK_TIMEOUT_S, "raise_on_missing_output": False,
}  # fmt: skip
_MOST_COMMON = 12
#: What Ray calls the end of a task whose own process died, and not its node.
_DIED = ("WORKER_DIED", "OUT_OF_MEMORY")


class JobWorker(NamedTuple):
    """An actor, or a task.

    :param name: of its class, or the task's.
    :param pid: of its process, also of one that has died; 0 before the first.
    :param deaths: after which Ray started it again.
    """

    id: str
    name: str
    pid: int
    deaths: int


class WorkerExit(NamedTuple):
    """How a process of a worker ended, by Ray.

    :param process: whose log may say why.
    """

    text: str
    process: Mapping[str, Any]

    @property
    def reason(self) -> str:
        return self.text.partition(". ")[0]


def workers_of_job() -> list[JobWorker]:
    """Returns this job's actors that have not ended for good, and its tasks once the process of one died;
    none when the state API does not answer."""
    try:
        return [*_actors(), *_tasks()]
    except Exception:
        return []


def _actors() -> Iterator[JobWorker]:
    from ray.util.state import list_actors

    for actor in list_actors(filters=_of_this_job(), **_LOOK):
        if actor.state != "DEAD":
            restarts = actor.num_restarts - actor.num_restarts_due_to_node_preemption
            yield JobWorker(actor.actor_id, actor.class_name, actor.pid or 0, restarts)


def _tasks() -> Iterator[JobWorker]:
    from ray.util.state import list_tasks

    tasks = [*_of_this_job(), ("type", "=", "NORMAL_TASK")]
    failed = list_tasks(filters=[*tasks, ("state", "=", "FAILED")], **_LOOK)
    died = [attempt for attempt in failed if attempt.error_type in _DIED]
    if not died:
        return
    others = list_tasks(filters=[*tasks, ("state", "!=", "FAILED")], **_LOOK)
    attempts = sorted([*died, *others], key=lambda attempt: attempt.attempt_number)
    pids = {attempt.task_id: attempt.worker_pid for attempt in attempts if attempt.worker_pid}
    deaths = Counter(attempt.task_id for attempt in died)
    for id, name in {attempt.task_id: attempt.name for attempt in attempts}.items():
        yield JobWorker(id, name, pids.get(id, 0), deaths[id])


def worker_exit(pid: int) -> WorkerExit | None:
    """Returns how a worker of this id ended; None when it has not, or the state API does not answer."""
    from ray.util.state import list_workers

    filters: list[Any] = [("pid", "=", pid), ("is_alive", "=", False)]
    try:
        found = list_workers(
            filters=filters,
            detail=True,
            limit=_LIMIT,
            timeout=_LOOK_TIMEOUT_S,
            raise_on_missing_output=False,
        )
    except Exception:
        return None
    if not found:
        return None
    last = max(found, key=lambda worker: worker.end_time_ms or 0)  # ids are used again
    return WorkerExit(last.exit_detail or last.exit_type or "", {"node_id": last.node_id, "pid": pid})


def engine_is_starting() -> bool:
    """Returns whether an actor of this job has its resources and is not ready for the first time; True when
    the state API does not answer."""
    from ray.util.state import list_actors

    try:
        actors = list_actors(detail=True, filters=_of_this_job(), limit=_LIMIT, raise_on_missing_output=False)
    except Exception:  # no dashboard
        return True
    return any(a.state == "PENDING_CREATION" and a.pid for a in actors)


def describe_waiting() -> str:
    """Describes this job's unfinished tasks and actors, and the cluster's free CPUs; "" when the state API
    does not answer."""
    import ray
    from ray.util.state import list_actors, list_tasks

    try:
        mine = _of_this_job()
        tasks = list_tasks(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        actors = list_actors(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        free, total = (r().get("CPU", 0) for r in (ray.available_resources, ray.cluster_resources))
    except Exception:  # the error that this text belongs to matters more
        return ""
    states = Counter(f"{t.name} {t.state}" for t in tasks if t.state not in ("FINISHED", "FAILED"))
    states += Counter(f"{a.class_name} (actor) {a.state}" for a in actors if a.state != "DEAD")
    text = ", ".join(f"{count} x {name}" for name, count in states.most_common(_MOST_COMMON))
    return f"of this job, {text}; {free:g} of the cluster's {total:g} CPUs are free" if text else ""


def held_resources(shared_actor_prefix: str | None) -> tuple[dict[str, float], int]:
    """Returns the resources that this job's actors and placement groups hold, and how many of them still wait
    for theirs.

    :param shared_actor_prefix: prefix of the names of actors that this job shares with others.
    """
    import ray
    from ray.util.state import list_actors, list_placement_groups

    job = ray.get_runtime_context().get_job_id()
    requests: list[tuple[bool, list[dict[str, float]]]] = []
    actors = list_actors(detail=True, limit=_LIMIT, filters=_of_this_job())
    if shared_actor_prefix is not None:
        serving = list_actors(detail=True, limit=_LIMIT, filters=[("ray_namespace", "=", "serve")])
        actors += [a for a in serving if a.name.startswith(shared_actor_prefix) and a.job_id != job]
    for actor in actors:
        # With a process it has its resources; it is ALIVE only once its model is loaded.
        if actor.state != "DEAD" and actor.required_resources and not actor.placement_group_id:
            requests.append((bool(actor.pid), [actor.required_resources]))
    for group in list_placement_groups(detail=True, limit=_LIMIT, filters=[("creator_job_id", "=", job)]):
        if group.state != "REMOVED":
            bundles = [bundle["unit_resources"] for bundle in group.bundles or []]
            requests.append((group.state == "CREATED", bundles))
    held: Counter[str] = Counter()
    for granted, bundles in requests:
        for bundle in bundles if granted else ():
            held.update(bundle)
    return dict(held), sum(not granted for granted, _ in requests)


def _of_this_job() -> list[tuple[str, str, str]]:
    import ray

    return [("job_id", "=", ray.get_runtime_context().get_job_id())]
