"""Adds the page to Airflow's UI: its app to the API server, and its bundle to the navigation.

Every Airflow process loads this module: the app is built by its first request.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_raydatallm.links.page_address import APP, PAGE, airflow_path

if TYPE_CHECKING:
    from fastapi import FastAPI

_WWW = Path(__file__).parent.parent / "page" / "www"


class LazyApp:
    """An ASGI app that is built when it is first called."""

    _app: FastAPI | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            from airflow_provider_raydatallm.page.app import build_app

            self._app = build_app()
        await self._app(scope, receive, send)


def _static(name: str) -> str:
    return airflow_path(f"{APP}/static/{name}")


def _version() -> str:
    # Browsers keep the bundle until its address is another.
    return (_WWW / "source.sha256").read_text("ascii")[:12]


class RayLLMPagePlugin(AirflowPlugin):
    name = "ray_llm_page"
    fastapi_apps = [{"app": LazyApp(), "url_prefix": APP, "name": "Ray LLM"}]
    react_apps = [
        {
            "name": "Ray LLM",
            "bundle_url": _static(f"ray_llm.js?v={_version()}"),
            "destination": "nav",
            "url_route": PAGE,
            "icon": _static("icon.svg"),
            "icon_dark_mode": _static("icon_dark.svg"),
        }
    ]
