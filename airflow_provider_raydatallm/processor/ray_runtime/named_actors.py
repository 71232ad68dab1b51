"""Names that jobs on one cluster see of each other: actors that do nothing and end with their job, however
that dies. Ray makes one of a name at most, so a name is a lock, too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.actor import ActorHandle

NAMESPACE = "airflow-ray-llm"
_LOOK_SECONDS = 0.5


def create_named_actor(name: str) -> ActorHandle[Any] | None:
    """An actor of that name that ends with this job, or when it is killed; None when there is one of it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Place:
        """Does nothing: that it is there says all. Defined here it travels with the call: not every node, nor
        every job, has this module."""

    # On the driver's node, so that it keeps no other from being scaled away.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    try:
        actor: ActorHandle[Any] = ray.remote(Place).options(**options, scheduling_strategy=here).remote()
    except ValueError:
        return None
    return actor


def named_actors(prefix: str) -> list[str]:
    """All names that begin so, in their order, without that beginning."""
    from ray.util import list_named_actors

    found: list[Any] = list_named_actors(all_namespaces=True)
    names = sorted(a["name"] for a in found if a["namespace"] == NAMESPACE)
    return [n.removeprefix(prefix) for n in names if n.startswith(prefix)]


@contextlib.contextmanager
def cluster_lock(name: str) -> Iterator[None]:
    """For what one job on the cluster may do at a time."""
    import ray

    while (lock := create_named_actor(name)) is None:
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        ray.kill(lock)
