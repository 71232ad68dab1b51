"""Airflow's UI in a headless browser, over slices that tests write: neither Ray nor a scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support import browser
from tests.support.stalled_server import stalled_server
from tests.support.ui_server import UiServer, ui_server


@pytest.fixture(scope="package")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiServer]:
    """Its S3 never answers."""
    home: Path = tmp_path_factory.mktemp("ui")
    with stalled_server() as endpoint:
        environment = {
            "AIRFLOW__RAY_LLM__SHOW_SAMPLES": "true", "AIRFLOW__RAY_LLM__GPU_HOUR_PRICE": "2.5",
            "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
        }  # fmt: skip
        with ui_server(home, environment) as server:
            yield server


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = browser.chromium()
    if program is None:
        pytest.skip("no Chromium: install chromium, or run `playwright install chromium`")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def page(chromium: Browser, ui: UiServer) -> Iterator[Page]:
    """A window of its own; no script of the page fails in it."""
    context = chromium.new_context(base_url=ui.url, locale="en-US", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.set_default_timeout(120_000)
    expect.set_options(timeout=120_000)  # a busy machine takes its time
    yield page
    context.close()
    assert failures == []
