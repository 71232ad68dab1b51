"""A slice waits for its turn, not for nodes that are gone."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.inference.size_watch import SizeWatch
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts
from tests.support.in_process import job_of


def test_wait_on_a_cluster_that_became_too_small_ends_unless_its_nodes_come_back() -> None:
    cluster, probes = ClusterFacts({"CPU": 64, "GPU": 4}), 0

    def probe() -> ClusterFacts:
        nonlocal probes
        probes += 1
        return cluster

    engine = VllmEngine(job_of(input_path="/i", output_path="/o", model_source="m", engine__workers=2), 1000)
    watch = SizeWatch(engine, 1000, every_s=60, probe=probe)
    for waited_s in (1, 59, 61, 100):
        watch.check(waited_s)
    assert probes == 1
    cluster = ClusterFacts({"CPU": 1})
    with pytest.raises(SliceError, match=r"waited 122 s.*where the cluster has 1"):
        watch.check(122)
