from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_server import TlsServer, tls_server


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    with tls_server(tmp_path) as server:
        yield server
