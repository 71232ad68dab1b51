from collections.abc import Iterator

import pytest

from airflow_provider_raydatallm.hooks import jobs_api
from tests.support.fake_cluster import FakeCluster, fake_cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """The cluster of the connection `ray_default`."""
    monkeypatch.setattr(jobs_api, "_BACKOFF", (0.01,))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with fake_cluster() as server:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", f'{{"conn_type": "ray", "host": "{server.address}"}}')
        yield server
