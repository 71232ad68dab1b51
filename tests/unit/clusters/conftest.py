from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raydatallm.clusters.kuberay import cluster as kuberay
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import kube_server
from tests.support.kube.tasks import CONNECTION, World, set_kubernetes


@pytest.fixture(params=["1.7"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setattr(kuberay, "_REASON_SECONDS", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with kube_server(kuberay=request.param) as kube, RayOperator(kube) as operator:
        set_kubernetes(kube, monkeypatch)
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", "ray://kuberay")
        monkeypatch.setattr("airflow_provider_raydatallm.clusters.kuberay.watch._watches", {})
        yield World(kube, operator, str(tmp_path))
