"""The app that Airflow's API server mounts: the JSON routes and the page's bundle."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

from airflow_provider_raydatallm import __version__
from airflow_provider_raydatallm.page.routes import router

_WWW = Path(__file__).parent / "www"
#: Nothing here is a document of its own: a browser that is led to one of these addresses runs nothing.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class _Bundle(StaticFiles):
    """Its address names its content."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        response = super().file_response(*given, **more)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def build_app() -> FastAPI:
    # Its documentation's own page would load scripts of others.
    app = FastAPI(
        title="Ray LLM",
        summary="Slices of RayLLMBatchOperator's tasks; read-only.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    mimetypes.add_type("text/javascript", ".js")

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    app.include_router(router)
    app.mount("/static", _Bundle(directory=_WWW, check_dir=False))
    return app
