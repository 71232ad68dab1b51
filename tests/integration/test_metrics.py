"""What a run tells while it is at work: to Ray's real metrics endpoint and to its folder."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.processor.metrics.prometheus import METRICS, NAMESPACE
from tests.support.paths import ROOT
from tests.support.slices import STUB, Ask
from tests.support.waiting import wait_for

OURS = {f"{NAMESPACE}_{name}" for name, _ in METRICS.values()}
#: What the stub engine has no word of.
UNTOLD = {
    "ray_llm_rows_truncated", "ray_llm_rows_cached", "ray_llm_rows_asked_again", "ray_llm_cached_tokens",
    "ray_llm_workers", "ray_llm_workers_busy_ratio", "ray_llm_least_busy_worker_ratio",
    "ray_llm_rows_degenerate", "ray_llm_flops_percent", "ray_llm_bandwidth_percent",
}  # fmt: skip


def scraped(head: LocalHead) -> list[tuple[str, Mapping[str, str], float]]:
    """All samples of all nodes, found where Prometheus finds them."""
    discovery = head.folder / "tmp" / "prom_metrics_service_discovery.json"
    targets = [t for group in json.loads(discovery.read_text()) for t in group["targets"]]
    pages = []
    for target in targets:
        with contextlib.suppress(httpx.TransportError):  # also those of services that this head does not run
            pages.append(httpx.get(f"http://{target}/metrics", trust_env=False).text)
    return [
        (sample.name, sample.labels, sample.value)
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


@pytest.mark.long
def test_run_is_seen_in_prometheus_and_in_its_folder_while_it_is_at_work(
    ray_head: LocalHead, ask: Ask, tmp_path: Path
) -> None:
    rows, done = 600, 400
    names = [f"n{i}" for i in range(done)] + ["wait"] * (rows - done)
    pq.write_table(pa.table({"name": names}), tmp_path / "in.parquet")
    gate = tmp_path / "gate"
    table = f"{tmp_path}/Zürich"
    given = {
        **STUB, "input_path": f"{tmp_path}/in.parquet", "output_path": table, "slice_key": "é/1",
        "prompt": "{name}", "engine__batch_size": 20, "engine__gpu_hour_price": 3600,
        "engine__kwargs": {"gate": str(gate), "gpus": f"{tmp_path}/gpus"}, "limits__finish_by": 1.0,
    }  # fmt: skip
    (tmp_path / "gpus").write_text("2")
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(ask(**given)))
    thread.start()

    def ours() -> dict[str, float]:
        return {
            name: value
            for name, labels, value in scraped(ray_head)
            if name in OURS
            and (labels.get("table"), labels.get("slice")) == (f"{tmp_path}/Z%C3%BCrich", "%C3%A9/1")
        }

    # Ray collects one metric after the other.
    wanted = {
        "ray_llm_rows_planned": rows, "ray_llm_rows_finished": done,
        "ray_llm_input_tokens": 7 * done, "ray_llm_output_tokens": 3 * done,
    }  # fmt: skip
    found = wait_for(lambda: wanted.items() <= (f := ours()).items() and set(f) >= OURS - UNTOLD and f)
    [file] = wait_for(lambda: list(Path(f"{table}.ray_llm").glob("*/progress.json")))
    told = wait_for(lambda: (p := json.loads(file.read_text()))["rows"] == done and p)
    gate.touch()
    thread.join()

    assert set(found) == OURS - UNTOLD
    assert found["ray_llm_rows_per_second"] > 0
    assert found["ray_llm_cost"] > 0
    assert 0 < found["ray_llm_engine_start_seconds"] <= found["ray_llm_first_row_seconds"]
    assert told["step"] == "answer"
    assert (told["planned"], told["input_tokens"]) == (rows, 7 * done)

    assert told["late_s"] > 0
    assert (results[0]["outcome"], results[0]["advice"]) == ("published", ["finished_late"])
    assert not file.exists()
    wait_for(lambda: not ours())  # the figures end with the run


def test_dashboard_shows_metrics_that_there_are(ray_head: LocalHead) -> None:
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    dashboard = (ROOT / "grafana" / "ray_llm.json").read_text()
    named = set(re.findall(r"\bray_\w+", dashboard))
    assert named & OURS
    of_gpus = {n for n in named if n.startswith(("ray_node_gpu", "ray_node_gram"))}
    assert of_gpus <= {f"{NAMESPACE}_{name}" for name in METRICS_GAUGES}  # a node without GPUs has none
    of_nodes = named - OURS - of_gpus
    wait_for(lambda: of_nodes <= {name for name, _, _ in scraped(ray_head)})
