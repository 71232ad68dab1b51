"""Names that all jobs on a cluster see: actors that do nothing and end with their job, however it dies. Ray
creates at most one actor of a name, so a name is also a lock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.errors import SliceError

if TYPE_CHECKING:
    from ray.actor import ActorHandle

NAMESPACE = "airflow-ray-llm"
_LOOK_SECONDS = 0.5


def create_named_actor(name: str) -> ActorHandle[Any] | None:
    """Returns a new actor that ends with this job or when it is killed; None when the name is taken."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Placeholder:
        """Defined here so that it travels with the call: not every node or job has this module."""

    # On the driver's node, so that it keeps no other node from being scaled away.
    node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    try:
        actor: ActorHandle[Any] = (
            ray.remote(Placeholder).options(**options, scheduling_strategy=node).remote()
        )
    except ValueError:
        return None
    return actor


def named_actors(prefix: str) -> list[str]:
    """Returns the sorted names with this prefix, without it."""
    from ray.util import list_named_actors

    actors: list[Any] = list_named_actors(all_namespaces=True)
    names = sorted(a["name"] for a in actors if a["namespace"] == NAMESPACE)
    return [n.removeprefix(prefix) for n in names if n.startswith(prefix)]


@contextlib.contextmanager
def cluster_lock(name: str, timeout_s: float) -> Iterator[None]:
    """Holds a lock that one job on the cluster can have at a time.

    :raises SliceError: of kind `engine`, when others hold it all the time: one of them may hang.
    """
    import ray

    deadline = time.monotonic() + timeout_s
    while (lock := create_named_actor(name)) is None:
        if time.monotonic() > deadline:
            raise SliceError(
                f"other jobs hold the lock {name!r} for more than {timeout_s:g} s: does one of them hang?",
                kind="engine",
            )
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        ray.kill(lock)
