from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_server import TlsServer, tls_server


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    with tls_server(tmp_path) as server:
        yield server
