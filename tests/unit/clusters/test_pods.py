from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.clusters.kuberay.pods import held_node


def pod(resource: str, phase: str = "Running") -> dict[str, Any]:
    at = "2026-01-31T10:00:00Z"
    return {
        "spec": {"containers": [{"resources": {"limits": {"cpu": "3", resource: "1"}}}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}],
            "containerStatuses": [{"state": {"running": {"startedAt": at}}}],
        },
    }


@pytest.mark.parametrize(("resource", "gpus"), [
    ("nvidia.com/gpu", 1), ("amd.com/gpu", 1), ("nvidia.com/gpu.shared", 1), ("nvidia.com/mig-3g.40gb", 1),
    ("memory", None), ("google.com/tpu", None),
])  # fmt: skip
def test_gpus_are_of_any_maker_whole_or_shared(resource: str, gpus: float | None) -> None:
    node = held_node(pod(resource))
    assert (node and node.gpus) == gpus


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_pod_that_was_evicted_holds_none(phase: str) -> None:
    assert held_node(pod("nvidia.com/gpu", phase)) is None
