"""The two storages of the trials: a disk, and a real S3 API on loopback.

The S3 server (moto) keeps its objects in memory, so that killing it would lose what it promised to keep,
which no object store does. What dies instead is the way to it: a proxy, a process of its own, that is killed
with all connections in it and started again at the same port, while the objects stay.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec

from tests.support.paths import ROOT

BUCKET = "lake"


def environment(port: int) -> dict[str, str]:
    """Variables by which a process reaches the S3 API at that port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip


class Program:
    """A server program of ours that listens on loopback."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.port = port
        self._command = [sys.executable, "-m", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(6000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"{self._command} does not listen on port {self.port}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class S3:
    """The S3 server; started when it is first needed."""

    def __init__(self) -> None:
        self._server: Program | None = None

    @property
    def port(self) -> int:
        if self._server is None:
            port = free_port()
            self._server = Program(port, "tests.support.atomic_moto", "-H", "127.0.0.1", "-p", str(port))
            import httpx

            httpx.put(f"http://127.0.0.1:{port}/{BUCKET}", trust_env=False).raise_for_status()
        return self._server.port

    def proxy(self, *arguments: str) -> Program:
        """A way to the server that can be killed, or told to misbehave: see `proxy.py`."""
        port = free_port()
        return Program(port, "tests.chaos.proxy", str(port), str(self.port), *arguments)

    def dialect(self, *settings: str) -> Program:
        """A way to the server that speaks as another store does: see `tests.support.s3_dialect`."""
        port = free_port()
        return Program(port, "tests.support.s3_dialect", str(port), str(self.port), *settings)

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare_clients() -> None:
    """Make S3 clients start fast: what they read from disk is read once, before processes are forked."""
    import functools

    import botocore.loaders

    loader = botocore.loaders.JSONFileLoader
    loader.load_file = functools.cache(loader.load_file)
    import aiobotocore.session
    import s3fs  # noqa: F401

    session = aiobotocore.session.get_session()
    for name in ("endpoints", "partitions", "sdk-default-configuration"):
        session.get_component("data_loader").load_data(name)
    for kind in ("service-2", "endpoint-rule-set-1", "paginators-1", "waiters-2"):
        session.get_component("data_loader").load_service_model("s3", kind)


def use(port: int | None) -> None:
    """Take the S3 API at that port in this process. One client serves all of it, and retries wait less."""
    if port is None:
        return
    os.environ.update(environment(port))
    from botocore.retries.standard import ExponentialBackoff

    delay, url_to_fs = ExponentialBackoff.delay_amount, fsspec.core.url_to_fs
    ExponentialBackoff.delay_amount = lambda self, context: delay(self, context) / 10
    clients: dict[str, Any] = {}

    def one_client(url: str, **options: Any) -> tuple[fsspec.AbstractFileSystem, str]:
        if not url.startswith("s3://"):
            return url_to_fs(url, **options)
        if "s3" not in clients:
            clients["s3"] = url_to_fs(url, **options)[0]
        return clients["s3"], clients["s3"]._strip_protocol(url)

    fsspec.core.url_to_fs = one_client


def copy_to_disk(url: str, folder: Path) -> None:
    """Keep what a failed trial left, for people to look at."""
    if url.startswith("s3://"):
        fs, path = fsspec.core.url_to_fs(url)
        for name in fs.find(path):
            to = folder / "s3" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(fs.cat_file(name))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
