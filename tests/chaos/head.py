"""The embedded head of a run of trials: its own folder, its own processes, which trials kill."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import psutil

from airflow_provider_raydatallm.clusters.embedded.head import (
    FOLDER_VARIABLE,
    LocalHead,
    ensure_head,
    stop_head,
)
from airflow_provider_raydatallm.clusters.embedded.processes import find_processes


class Head:
    """The head that the connection `ray_default` names, until it is closed."""

    def __init__(self) -> None:
        self.folder = Path(f"/tmp/ch{uuid.uuid4().hex[:6]}")
        self._variables = {FOLDER_VARIABLE: str(self.folder), "AIRFLOW_CONN_RAY_DEFAULT": "ray://local"}
        self._before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)

    def ensure(self) -> LocalHead:
        return ensure_head(self.folder)

    def processes(self) -> list[psutil.Process]:
        return list(find_processes(self.folder, {}).values())

    def end(self) -> None:
        stop_head(self.folder)

    def close(self) -> list[str]:
        """End it; what of it lives on."""
        self.end()
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        left = [f"{p.pid} {command_of(p)[:80]}" for p in self.processes()]
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""
