"""The DAG kinds, each in both modes: `manual_waiting`, `manual_deferred`, `scheduled_waiting`, ...

Every DAG has a Param `table`, a folder under $DURABLE_ROOT, and one task that matters, `ask`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pendulum
from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    Param,
    get_current_context,
    task,
)

from airflow_provider_raydatallm.operators.ray_cluster import RayClusterOperator
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.operators.triggering_slices import triggering_slices
from airflow_provider_raydatallm.task.airflow_features import HAS_EVENT_PARTITIONS

ROOT, ENGINES = os.environ["DURABLE_ROOT"], os.environ["DURABLE_ENGINES"].split(os.pathsep)
MODES: dict[str, dict[str, Any]] = {"waiting": {"deferrable": False}, "deferred": {"deferrable": True}}
_CONTAINER = {"name": "ray", "image": "rayproject/ray:2.60.0"}
#: A Ray cluster of one node.
HEAD = {
    "apiVersion": "ray.io/v1", "kind": "RayCluster",
    "spec": {"rayVersion": "2.60.0", "headGroupSpec": {
        "rayStartParams": {"num-cpus": "8"}, "template": {"spec": {"containers": [_CONTAINER]}},
    }},
}  # fmt: skip
#: Its head finds in Redis what it knew before it died.
RECOVERING = {
    **HEAD,
    "spec": {**HEAD["spec"], "gcsFaultToleranceOptions": {"redisAddress": os.environ.get("DURABLE_REDIS")}},
}
REVIEWED = {"gates": [{"of": "rows", "then": "hold"}]}
#: DAGs that a person triggers, each with something of its own.
VARIANTS: dict[str, dict[str, Any]] = {
    "manual": {},
    "pooled": {
        "pool": "one_slice",
        "outlets": [Asset("pooled_slices")],
        "emit_partition": HAS_EVENT_PARTITIONS,
    },
    "announced": {"outlets": [Asset("announced_slices")]},
    "kept": {"cancel_on_kill": False},
    # Time enough for a job to start and answer a batch, on a busy machine too.
    "timed": {"execution_timeout": pendulum.duration(seconds=40), "retries": 0},
    # A test makes these connections and this Variable, deletes them, and edits this DAG.
    "unplugged": {
        "ray_conn_id": "ray_unplugged",
        "storage_conn_id": "sts_unplugged",
        "model_conn_id": "hub_unplugged",
        "system_prompt": "{{ var.value.unplugged }}",
        **({"prompt": "Edited {name}", "output_path": "/edited"} if os.path.exists(f"{ROOT}/edited") else {}),
    },
    # A test seals the vault, which alone has these connections.
    "sealed": {"ray_conn_id": "ray_sealed", "model_conn_id": "hub_sealed"},
    "sealed_soon": {"ray_conn_id": "ray_sealed", "limits": {"reconnect": 5}},
    # Its next try does not come while a test looks.
    "patient": {"retry_delay": pendulum.duration(hours=1)},
    # A test edits its file, which Airflow does not read again meanwhile, and replaces its input.
    "retried": {"rerun": "recompute", **({"retries": 5} if os.path.exists(f"{ROOT}/edited") else {})},
    "embedded": {"ray_conn_id": "ray_embedded", "retries": 0},
    "watched": {"limits": {"orphan": 60}},
    # The cluster has room for one of these at a time.
    "crowded": {
        "engine": {"kind": "held_engine:HeldEngine", "batch_size": 10, "kwargs": {"ask_cpus": 20}},
    },
    # A person looks at every slice.
    "reviewed": {"quality": REVIEWED},
    # What the workers see is no store of the cluster's.
    "reviewed_afar": {
        "quality": REVIEWED,
        "runtime_env": {"env_vars": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}},
    },
    # Nobody looks at it.
    "rejected_late": {"quality": {**REVIEWED, "hold": {"reject_after": "20s"}}},
    "approved_late": {"quality": {**REVIEWED, "hold": {"approve_after": "20s"}}},
    # KubeRay makes a cluster for it.
    "made": {
        "ray_conn_id": "ray_kuberay",
        "cluster": {"template": HEAD, "namespace": "ml", "address": "kubernetes"},
    },
    "once": {"retries": 0, "limits": {"orphan": 60, "reconnect": 5}},
}
FIRST = pendulum.datetime(2025, 1, 1, tz="UTC")


def arguments(mode: str, **more: Any) -> dict[str, Any]:
    return {
        "task_id": "ask", "input_path": ROOT + "/{{ params.table }}/in/ds={slice}/",
        "output_path": ROOT + "/{{ params.table }}/out", "prompt": "Who is {name}?",
        "model_source": "stub/stub", "engine": {"kind": "held_engine:HeldEngine", "batch_size": 10},
        "code_paths": ENGINES, "poll_interval": 1.0,
        "retries": 2, "retry_delay": pendulum.duration(seconds=1),
        **MODES[mode], **more,
    }  # fmt: skip


def make(name: str, mode: str, *, params: dict[str, Any] | None = None, **dag: Any) -> DAG:
    """A DAG whose table is by default its own."""
    name = f"{name}_{mode}"
    table = Param(name, type="string", title="Table")
    return DAG(name, params={**(params or {}), "table": table}, max_active_runs=8, tags=[mode], **dag)


class LastSecond(RayLLMBatchOperator):
    """Its first try dies when the slice is finished, before Airflow takes note."""

    def _finish(self, context: Any, *given: Any) -> dict[str, Any]:
        result = super()._finish(context, *given)
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


@task
def days() -> list[str]:
    return list(get_current_context()["params"]["days"])


for mode in MODES:
    day = Param("2025-01-01", type="string", format="date", title="Day")
    for name, more in VARIANTS.items():
        with make(name, mode, params={"slice": day}, schedule=None):
            RayLLMBatchOperator(**arguments(mode, **more))

    # Empty, as in `customers_asset`: the form of "Materialize" asks for it.
    asked = Param(None, type=["null", "string"], format="date", title="Day")
    with make("asset", mode, params={"slice": asked}, schedule=None):
        RayLLMBatchOperator(**arguments(mode), outlets=[Asset(f"asset_{mode}")])

    more = {"force": Param(False, type="boolean"), "share": Param(0.0, type="number"), "hub": Param("hub")}
    with make("templated", mode, params={"slice": day, **more}, schedule=None):
        RayLLMBatchOperator(
            **arguments(
                mode, rerun={"force": "{{ params.force }}"}, model_conn_id="{{ params.hub }}",
                quality={"max_quarantine": "{{ params.share }}"}, retries=0,
            )
        )  # fmt: skip

    with make("checked", mode, params={"slice": day, "least": Param(1, type="integer")}, schedule=None):
        check = {"of": "held_engine:count_rows", "min": "{{ params.least }}"}
        RayLLMBatchOperator(**arguments(mode, quality={"gates": [check]}))

    with make("dateless", mode, schedule=None):
        RayLLMBatchOperator(**arguments(mode))

    with make("lastsecond", mode, params={"slice": day}, schedule=None):
        LastSecond(**arguments(mode))

    with make("reviewed_lastsecond", mode, params={"slice": day}, schedule=None):
        LastSecond(**arguments(mode, quality=REVIEWED, rerun={"force": True}))

    # Two days that are over, started by the scheduler once somebody unpauses the DAG.
    nightly = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
    past: dict[str, Any] = {
        "start_date": FIRST, "end_date": FIRST.add(days=1), "is_paused_upon_creation": True,
    }  # fmt: skip
    with make("scheduled", mode, schedule=nightly, catchup=True, **past):
        RayLLMBatchOperator(**arguments(mode))

    partitions = CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d")
    with make("partitioned", mode, schedule=partitions, catchup=True, **past):
        RayLLMBatchOperator(**arguments(mode))

    # The scheduler makes no run of these by itself: their schedule has ended.
    ended: dict[str, Any] = {"start_date": FIRST, "end_date": FIRST.add(days=30), "catchup": False}
    # Its Param is for people: a backfill's days are their own.
    with make("backfill", mode, params={"slice": day}, schedule=nightly, **ended):
        RayLLMBatchOperator(**arguments(mode))

    # With the Params that the page's actions set.
    acts = {
        "slice": asked, "force": Param(False, type="boolean"),
        "retry_quarantined": Param(False, type="boolean"), "max_quarantine": Param(0.5, type="number"),
    }  # fmt: skip
    far: dict[str, Any] = {
        **ended, "start_date": pendulum.datetime(2025, 1, 1, tz="Asia/Taipei"),
        "schedule": CronDataIntervalTimetable("0 0 * * *", timezone="Asia/Taipei"),
    }  # fmt: skip
    with make("paged", mode, params=acts, **far):
        RayLLMBatchOperator(
            **arguments(
                mode, prompt="{name}", outlets=[Asset(f"paged_{mode}")],
                quality={"max_quarantine": "{{ params.max_quarantine }}"},
                rerun={
                    "force": "{{ params.force }}", "retry_quarantined": "{{ params.retry_quarantined }}",
                },
            )
        )  # fmt: skip

    with make("backfill_partitioned", mode, schedule=partitions, **ended):
        RayLLMBatchOperator(**arguments(mode))

    some = Param(["2025-01-01", "2025-01-02"], type="array", items={"type": "string"}, title="Days")
    with make("mapped", mode, params={"days": some}, schedule=None):
        RayLLMBatchOperator.partial(**arguments(mode)).expand(slice_key=days())

    with make("recovering", mode, params={"slice": day}, schedule=None):
        on_redis = {"template": RECOVERING, "namespace": "ml"}
        RayLLMBatchOperator(**arguments(mode, ray_conn_id="ray_kuberay", cluster=on_redis))

    # All on one cluster that KubeRay makes.
    with make("shared", mode, params={"days": some}, schedule=None):
        on: dict[str, Any] = {
            "ray_conn_id": "ray_kuberay",
            "cluster": {"template": HEAD, "namespace": "ml", "name": f"shared-{mode}"},
        }
        retries: dict[str, Any] = {"retries": 2, "retry_delay": pendulum.duration(seconds=1)}
        made = RayClusterOperator(task_id="make", **on, **retries)
        shared = RayLLMBatchOperator.partial(**arguments(mode, **on)).expand(slice_key=days())
        made >> shared >> made.ends("end", **retries)

    # Two tasks chained by an asset. A test unpauses the second one.
    with make("chaining", mode, params={"days": some}, schedule=None):
        RayLLMBatchOperator.partial(**arguments(mode), outlets=[Asset(f"chaining_{mode}")]).expand(
            slice_key=days()
        )
    with make("chained", mode, schedule=[Asset(f"chaining_{mode}")], is_paused_upon_creation=True):
        RayLLMBatchOperator.partial(**arguments(mode)).expand(slice_key=triggering_slices())
