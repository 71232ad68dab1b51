"""A Ray Serve deployment answers a slice: its proxy on each node is an endpoint."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from tests.support.paths import ROOT

NAMES = [f"Dental {i}" for i in range(300)]


@pytest.fixture
def serve_port(ray_head: LocalHead) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    environment = os.environ | ray_head.environment() | {"RAY_ADDRESS": ray_head.gcs_address}
    command = [sys.executable, "-m", "tests.support.serve_chat"]
    subprocess.run([*command, str(port)], cwd=ROOT, env=environment, check=True, timeout=300)
    yield port
    subprocess.run([*command, "stop"], cwd=ROOT, env=environment, check=True, timeout=300)


@pytest.mark.long
def test_deployment_of_ray_serve_answers_a_slice(
    run_example: Callable[..., Path], serve_port: int, tmp_path: Path
) -> None:
    (tmp_path / "in" / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(pa.table({"Company": NAMES}), tmp_path / "in" / "ds=2026-01-01" / "in.parquet")
    table = run_example(
        "customers_serve", RAY_LLM_DEMO_INPUT=tmp_path / "in", RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_SERVE=f"http://127.0.0.1:{serve_port}/v1",
    )  # fmt: skip
    rows = pq.read_table(table / "ds=2026-01-01", partitioning=None).to_pylist()
    assert [row["industry"] for row in rows] == [
        f"What industry is this company in: {name}".upper() for name in NAMES
    ]
    report = json.loads(next(table.with_name("out_by_serve.ray_llm").rglob("report*.json")).read_text())
    assert report["tokens"]["output"] == len(NAMES)
