"""Clients of clusters that come and go, in a process that lives for months."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from airflow_provider_raydatallm.hooks import http_clients
from airflow_provider_raydatallm.hooks.connection import RaySettings
from airflow_provider_raydatallm.hooks.http_clients import SharedClient, close_clients
from tests.support.async_tests import async_test
from tests.support.fake_cluster import FakeCluster
from tests.unit.task.conftest import cluster

__all__ = ["cluster"]


@async_test
async def test_client_that_nobody_uses_is_closed_and_one_that_streams_is_not(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RaySettings(cluster.address)
    gone, streams, new = (
        SharedClient.for_settings(replace(settings, token=token)) for token in ("a", "b", "c")
    )
    async with streams.stream(method="GET", url="/api/version"):
        await gone.request(method="GET", url="/api/version")
        monkeypatch.setattr(http_clients, "_IDLE_SECONDS", 0.0)
        assert SharedClient.for_settings(replace(settings, token="a")) is gone
        await asyncio.sleep(0.01)
        SharedClient.for_settings(replace(settings, token="d"))
        await asyncio.sleep(0.01)
        for closed in (gone, new):
            with pytest.raises(RuntimeError, match="closed"):
                await closed.request(method="GET", url="/api/version")
        assert SharedClient.for_settings(replace(settings, token="b")) is streams
    assert (await streams.request(method="GET", url="/api/version")).status_code == 200
    await close_clients()
