"""A Ray Serve deployment answers a slice: its proxy on each node is an endpoint."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.local_ray.head import LocalHead
from tests.support.paths import ROOT
from tests.support.slices import Ask

NAMES = [f"Dental {i}" for i in range(300)]


@pytest.fixture
def serve_port(ray_head: LocalHead, no_engines: None) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    environment = os.environ | ray_head.environment() | {"RAY_ADDRESS": ray_head.gcs_address}
    command = [sys.executable, "-m", "tests.support.serve_chat"]
    subprocess.run([*command, str(port)], cwd=ROOT, env=environment, check=True, timeout=300)
    yield port
    subprocess.run([*command, "stop"], cwd=ROOT, env=environment, check=True, timeout=300)


def test_deployment_of_ray_serve_answers_a_slice(ask: Ask, serve_port: int, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": NAMES}), tmp_path / "in.parquet")
    result = ask(
        input_path=f"{tmp_path}/in.parquet", model_source="chat", prompt="{name}", poll_interval=1.0,
        engine={"kind": "http", "url": f"http://127.0.0.1:{serve_port}/v1"},
    )  # fmt: skip
    assert (result["counts"]["succeeded"], result["tokens"]["output"]) == (len(NAMES), len(NAMES))
    rows = pq.read_table(result["output_path"], partitioning=None).to_pylist()
    assert [row["answer"] for row in rows] == [name.upper() for name in NAMES]
