"""job_state."""

from __future__ import annotations

from collections import Counter

_LIMIT = 10_000


_NAMES = 12


def engine_is_starting() -> bool:
    """Whether an actor of this job has what it asked for, and is not ready for the first time; also when that
    cannot be told."""
    import ray
    from ray.util.state import list_actors

    try:
        job = ray.get_runtime_context().get_job_id()
        actors = list_actors(
            detail=True, filters=[("job_id", "=", job)], limit=_LIMIT, raise_on_missing_output=False
        )
    except Exception:  # no dashboard to ask
        return True
    return any(a.state == "PENDING_CREATION" and a.pid for a in actors)


def describe_waiting() -> str:
    """What this job's tasks and actors are doing, and how many CPUs are left, as Ray's state API has it;
    empty when it does not say."""
    import ray
    from ray.util.state import list_actors, list_tasks

    try:
        job = ray.get_runtime_context().get_job_id()
        mine = [("job_id", "=", job)]
        tasks = list_tasks(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        actors = list_actors(filters=mine, limit=_LIMIT, raise_on_missing_output=False)
        free, there = (of().get("CPU", 0) for of in (ray.available_resources, ray.cluster_resources))
    except Exception:  # what is told without it matters more
        return ""
    doing = Counter(f"{t.name} {t.state}" for t in tasks if t.state not in ("FINISHED", "FAILED"))
    doing += Counter(f"{a.class_name} (actor) {a.state}" for a in actors if a.state != "DEAD")
    said = ", ".join(f"{count} x {name}" for name, count in doing.most_common(_NAMES))
    return f"Of this job, {said}; {free:g} of the cluster's {there:g} CPUs are free" if said else ""
