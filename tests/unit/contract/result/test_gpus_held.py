"""What GPUs were held for, by the times of nodes and of the slice's report."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.contract.result.gpus_held import GpusHeld, HeldNode
from airflow_provider_raydatallm.contract.result.report import Counts, Report, Seconds, StartupSeconds

SECONDS = Seconds(
    start=StartupSeconds(environment=4, imports=1, engine=50, load=30),
    engine_start=60,
    inference=200,
    publish=5,
)


def report_of(outcome: str = "published", gpu_seconds: float | None = 520.0) -> Report:
    return Report(
        outcome=outcome, slice_key="a", output_path="/out", fingerprint="f",
        counts=Counts(planned=1, succeeded=1), seconds=SECONDS, gpu_seconds=gpu_seconds,
    )  # fmt: skip


def test_each_second_of_a_gpu_is_of_one_phase() -> None:
    """Two nodes; the second one's image comes 30 s later."""
    nodes = [HeldNode(1, 1000, 1100), HeldNode(1, 1000, 1130)]
    held = GpusHeld.of(nodes, report_of(), job_start=1150, now=1440)
    assert held is not None
    assert held.model_dump() == {
        "total": 880, "in_use": 400, "image": 230, "cluster": 70, "job_start": 10, "model": 60,
        "engine_start": 60, "inference": 400, "publish": 10, "other": 40,
    }  # fmt: skip
    assert held.total == 2 * 440
    assert str(held) == (
        "GPUs held for 880 s, 55% of it idle: image 230, cluster 70, job start 10, model 60, "
        "engine start 60, inference 400, publish 10, other 40"
    )


def test_node_that_joins_later_is_held_from_then_on() -> None:
    held = GpusHeld.of([HeldNode(4, 1250, 1300)], report_of(), job_start=1150, now=1440)
    assert held is not None
    assert (held.total, held.image, held.cluster, held.inference) == (4 * 190, 200, 0, 4 * 115)


@pytest.mark.parametrize(
    ("outcome", "gpu_seconds", "in_use"),
    [("published", None, 0), ("unchanged", 520.0, 0), ("published", 1e9, 200)],
)
def test_gpus_are_in_use_by_this_jobs_engine_only(
    outcome: str, gpu_seconds: float | None, in_use: float
) -> None:
    held = GpusHeld.of([HeldNode(1, 1000, 1100)], report_of(outcome, gpu_seconds), job_start=1150, now=1440)
    assert held is not None
    assert (held.total, held.in_use) == (440, in_use)


def test_cluster_without_gpus_or_job_is_told_as_it_is() -> None:
    assert GpusHeld.of([], report_of(), job_start=1150, now=1440) is None
    held = GpusHeld.of([HeldNode(1, 1000, None)], report_of(), job_start=None, now=1100)
    assert held is not None
    assert (held.total, held.image, held.idle_share) == (100, 100, 1)
