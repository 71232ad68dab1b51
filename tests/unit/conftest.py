"""Nothing here loses power, so nothing waits for the disk: what survives that is not what these tests can
tell. No proxy of this machine's environment stands before the servers of tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine may take long for an example.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

os.fsync = lambda handle: None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def _forgotten_secrets() -> Iterator[None]:
    """Airflow compiles all that it masks for each new secret: those of a thousand tests take it seconds."""
    yield
    if "airflow.sdk.log" in sys.modules:
        from airflow.sdk._shared.secrets_masker import reset_secrets_masker

        reset_secrets_masker()
