"""A real S3 API on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.paths import ROOT
from tests.support.waiting import wait_for


@contextmanager
def moto_server() -> Iterator[str]:
    """A real S3 API, with STS and IAM, on loopback; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.atomic_moto", "-H", "127.0.0.1", "-p", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
