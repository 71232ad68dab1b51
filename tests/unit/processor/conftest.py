"""An S3 API that speaks as other stores do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
import s3fs

from airflow_provider_raydatallm.processor.storage import store as store_module
from airflow_provider_raydatallm.processor.storage.store import Store
from tests.support.s3 import moto_server
from tests.support.s3_dialect import Dialect, s3_dialect


@pytest.fixture(scope="module")
def server() -> Iterator[Dialect]:
    """One for all tests of a module: starting it takes a second."""
    with moto_server() as address, s3_dialect(int(address.rpartition(":")[2])) as dialect:
        urlopen(Request(f"{address}/lake", method="PUT")).close()
        environment = {
            "AWS_ENDPOINT_URL": dialect.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            s3fs.S3FileSystem.clear_instance_cache()
            yield dialect
            s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def dialect(server: Dialect, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    """Speaks like S3 until a test changes it."""
    monkeypatch.setattr(store_module, "_RETRY_WAITS_SECONDS", (0.01, 0.05, 0.2))
    server.__init__(port=server.port)  # type: ignore[misc]
    return server


@pytest.fixture
def s3_store(dialect: Dialect) -> Store:
    return Store(f"s3://lake/{uuid.uuid4().hex}")
