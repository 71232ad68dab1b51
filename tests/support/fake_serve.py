"""Ray Serve's shared engines as a test sets them up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from airflow_provider_raydatallm.processor.engines.shared.identity import Identity
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import Scaling, ServeApps, SharedEngine

IDENTITY = Identity("m", {"model": "m"}, "f")
NAME = IDENTITY.name
SCALING = Scaling((2, 4), 32, 600)
ENGINE = SharedEngine(NAME, "RUNNING", "", SCALING.name, {"RUNNING": 2}, (), identity=IDENTITY)
STARTING = replace(ENGINE, status="DEPLOYING", workers={"STARTING": 1})
OTHER_SCALING = replace(ENGINE, scaling="workers-1-to-1-idle-600-s")
GPU = {"engine__accelerator": "L4", "engine__kwargs": {"tensor_parallel_size": 2}}


class FakeServe(ServeApps):
    """Has the engines that a test gives it, and records calls."""

    def __init__(self) -> None:
        self.present: list[SharedEngine] = []
        self.is_reachable = True
        self.loads = True  # whether a starting worker has its resources
        self.ensured: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}
        self.stopped: list[tuple[str, dict[str, bool]]] = []
        self.idle_stops = 0
        self.used: list[str] = []
        self.left: list[str] = []
        self.asked: list[str] = []

    def engines(self) -> list[SharedEngine]:
        if not self.is_reachable:
            raise ConnectionError
        return self.present

    def has_workers(self, engine: SharedEngine) -> bool:
        return bool(engine.workers.get("RUNNING") or (engine.workers.get("STARTING") and self.loads))

    def register_user(self, engine: str, slice_path: str, model_token: str = "") -> tuple[Any, str]:
        self.model_token = model_token
        self.used.append(engine)
        return SimpleNamespace(), f"0 {slice_path}"

    def end_use(self, engine: str, mark: Any) -> None:
        self.left.append(engine)

    def ensure_running(self, *arguments: Any, **options: Any) -> None:
        self.ensured.append(arguments)
        self.options = options

    def stop_engine(self, name: str, **options: bool) -> bool:
        self.stopped.append((name, options))
        return True

    def stop_idle_engine(self, *, keep: str | None = None) -> None:
        self.idle_stops += 1

    def handle(self, engine: str) -> Any:
        """Its workers' startup took 4 s."""
        self.asked.append(engine)
        ready = SimpleNamespace(result=lambda timeout_s: {"startup_seconds": {"engine": 4.0}})
        return SimpleNamespace(options=lambda method_name: SimpleNamespace(remote=lambda: ready))
