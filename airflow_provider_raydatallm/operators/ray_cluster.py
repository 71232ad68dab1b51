"""`RayClusterOperator`: a Ray cluster for several tasks, made by a setup task and ended by its teardown.
`CleanRayClustersOperator`: ends those that were left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_raydatallm.clusters.base import ClusterStartingError, Holder, Order
from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.clusters.kuberay import made_clusters
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayLLMInputError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.task.job.cancel import TaskAttempt, find_ended
from airflow_provider_raydatallm.task.queue.places import task_key

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Above every try's.
_ANY_TRY = 1_000_000
#: For so long an end is tried while the API server fails, each time after a pause.
_RELEASE_SECONDS, _PAUSE_SECONDS = 600.0, 10.0


class RayClusterOperator(BaseOperator):
    """Has KubeRay make a cluster for tasks that give its name, and needs it until `ends` does.

    It waits for no pods: that each task does by itself. Tasks that still need the cluster when it is ended
    keep it until they have their results; those that were killed or marked need it no more.

        cluster = {"template": "clusters/l4.yaml", "name": "backfill"}
        make = RayClusterOperator(task_id="make_cluster", ray_conn_id="ray_kuberay", cluster=cluster)
        slices = RayLLMBatchOperator(ray_conn_id="ray_kuberay", cluster=cluster, ...)
        make >> slices >> make.ends("end_cluster")

    :param cluster: as `RayLLMBatchOperator` has it, with a name.
    :param ray_conn_id: connection of type `ray` whose host is `kuberay`.
    """

    def __init__(
        self, *, cluster: Mapping[str, Any], ray_conn_id: str = RayHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.cluster, self.ray_conn_id = cluster, ray_conn_id
        self._teardown: BaseOperator | None = None
        if not isinstance(cluster, Mapping) or not cluster.get("name"):
            raise RayLLMInputError(f"{self.task_id}: cluster has no name, by which tasks could share it")
        if self.get_dag() is not None:  # whose folder has the file
            self._order()

    def ends(self, task_id: str, **kwargs: Any) -> BaseOperator:
        """Returns a teardown task, which runs whatever became of the tasks between them."""
        self._teardown = _EndRayClusterOperator(task_id=task_id, setup=self, **kwargs)
        if self._teardown.get_closest_mapped_task_group() is not self.get_closest_mapped_task_group():
            raise RayLLMInputError(
                f"{task_id} and {self.task_id} are not in the same mapped task group: it would end none of "
                "its clusters",
                advice="Call `ends` within the group",
            )
        teardown: BaseOperator = self._teardown.as_teardown(setups=self)
        return teardown

    def execute(self, context: Context) -> str:
        until = None
        if self._teardown is not None:
            until = _key_of(context, self._teardown.task_id)
        else:
            hours = self._order().blueprint.lifetime / 3600
            self.log.warning("No task ends this cluster (`ends`): KubeRay does, after %g hours", hours)
        holder = Holder(_key_of(context, self.task_id), context["ti"].try_number, until)
        hook = RayHook(self.ray_conn_id, holder, self._order)
        try:
            hook.acquire()
        except ClusterStartingError as e:
            self.log.info("%s", e.failure.headline)
        except BaseException:  # of a setup that failed Airflow runs no teardown
            with contextlib.suppress(RayConnectionError, RayUnreachableError):
                RayHook.to_cluster(hook.cluster, holder).release()
            raise
        return hook.acquired

    def _order(self) -> Order:
        """:raises RayLLMInputError: naming the leaf that cannot work."""
        fileloc = getattr(self.get_dag(), "fileloc", None)
        try:
            blueprint = Blueprint.parse(self.cluster, Path(fileloc).parent if fileloc else None)
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None
        return Order(blueprint, blueprint.lifetime)


class _EndRayClusterOperator(BaseOperator):
    def __init__(self, *, setup: RayClusterOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._setup = setup

    def execute(self, context: Context) -> None:
        setup = self._setup
        # As it was made, whatever the DAG says by now; some of the setup's tries may have died before that.
        made = context["ti"].xcom_pull(task_ids=setup.task_id, map_indexes=context["ti"].map_index)
        identity = str(made) if made else RayHook(setup.ray_conn_id, order=setup._order).cluster
        hook = RayHook.to_cluster(identity, Holder(_key_of(context, setup.task_id), _ANY_TRY))
        until = time.monotonic() + _RELEASE_SECONDS
        while True:
            try:
                return hook.release(find_ended)
            except RayUnreachableError as e:
                if time.monotonic() > until:
                    raise
                self.log.warning("Cannot end the cluster yet: %s", e)
                time.sleep(_PAUSE_SECONDS)


class CleanRayClustersOperator(BaseOperator):
    """Ends the Ray clusters on Kubernetes whose every task has ended and released nothing, such as those that
    were killed or marked; and removes what KubeRay keeps of clusters that it has ended. A cluster of one task
    whose job runs goes on: KubeRay ends it with the job.

    Returns the names of both.

    :param kubernetes_conn_id: connection to Kubernetes.
    :param namespace: where the clusters are. Default: the connection's.
    """

    def __init__(
        self, *, kubernetes_conn_id: str = "kubernetes_default", namespace: str = "", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kubernetes_conn_id, self.namespace = kubernetes_conn_id, namespace

    def execute(self, context: Context) -> list[str]:
        ended = []
        for cluster in made_clusters.clean(self.kubernetes_conn_id, self.namespace, find_ended):
            self.log.info("Ended Ray cluster %s, which was made for %s", cluster.name, cluster.owner)
            ended.append(cluster.name)
        left = made_clusters.find(self.kubernetes_conn_id, self.namespace)
        self.log.info(
            "Ray clusters of connection %s, namespace %s: %d ended, %d left",
            self.kubernetes_conn_id, self.namespace or "(the connection's)", len(ended), len(left),
        )  # fmt: skip
        return ended


def _key_of(context: Context, task_id: str) -> str:
    """Of a task of the same run and map index."""
    attempt = vars(TaskAttempt.from_task_instance(context["ti"]))
    return task_key({name: str(value) for name, value in {**attempt, "task_id": task_id}.items()})
