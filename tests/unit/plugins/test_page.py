"""What Airflow is told of the page."""

from __future__ import annotations

import importlib
import tomllib

import pytest
from airflow.plugins_manager import is_valid_plugin
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_raydatallm.links import page_address
from airflow_provider_raydatallm.plugins import page
from tests.support.paths import ROOT


def test_airflow_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["airflow.plugins"]["ray_llm_page"].partition(":")
    plugin = getattr(importlib.import_module(module), name)
    assert is_valid_plugin(plugin)
    assert [app["url_prefix"] for app in plugin.fastapi_apps] == ["/ray-llm"]
    assert [view["destination"] for view in plugin.react_apps] == ["nav"]


@pytest.mark.parametrize(
    ("base_url", "prefix"),
    [
        ("", ""),
        ("/", ""),
        ("https://airflow.example", ""),
        ("https://airflow.example/air/flow/", "/air/flow"),
    ],
)
def test_addresses_are_behind_the_path_of_airflow(
    monkeypatch: pytest.MonkeyPatch, base_url: str, prefix: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    run = "scheduled__2026-01-01T00:00:00+00:00"
    assert page_address.slice_page("a/b", "t", run, -1) == (
        f"{prefix}/plugin/ray-llm/dags/a%2Fb/tasks/t/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00/-1"
    )
    bundle = importlib.reload(page).RayLLMPagePlugin.react_apps[0]["bundle_url"]
    assert bundle.startswith(f"{prefix}/ray-llm/static/ray_llm.js?v=")


def test_app_is_built_by_its_first_request() -> None:
    app = page.LazyApp()
    assert app._app is None
    server = FastAPI()
    server.mount("/ray-llm", app)
    for _ in range(2):
        answer = TestClient(server).get("/ray-llm/openapi.json")
        assert answer.json()["info"]["title"] == "Ray LLM"
    assert isinstance(app._app, FastAPI)
