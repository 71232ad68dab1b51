"""The processes of engines, found by their titles."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.clusters.embedded.processes import MARKER_VARIABLE
from tests.support.slices import PROGRAM
from tests.support.waiting import wait_for


def engine_processes(actor: str = "CountingWorker") -> list[psutil.Process]:
    """EngineCore of the engines that an actor of this name started, on the head of `ray_default`: tests
    beside this one have heads of their own."""
    engines = _processes(Path(os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"]), "VLLM::EngineCor")
    return [p for p in engines if any(actor in parent.name() for parent in p.parents())]


def assert_pauses(engine: psutil.Process) -> None:
    """Neither process of a CPU engine polls without a pause: it would give its CPU up a few hundred times."""
    [worker] = wait_for(lambda: [p for p in engine.children() if "Worker" in p.name()])
    for process in (engine, worker):
        wait_for(lambda process=process: process.num_ctx_switches().voluntary > 2000, 60)


def processes(head: LocalHead, title: str) -> list[psutil.Process]:
    """The head's own whose title begins so."""
    return _processes(head.folder, title)


def end_engines() -> None:
    """Ends the shared engines of the head that the connection `ray_default` names, if there are any."""
    folder = os.environ.get("AIRFLOW_RAY_LLM_LOCAL_DIR")
    if folder and _processes(Path(folder), "ray::ServeReplica"):
        command = [PROGRAM, "engines", "stop", "--all", "--force"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _processes(folder: Path, title: str) -> list[psutil.Process]:
    found = []
    for p in psutil.process_iter(["cmdline"]):
        try:
            if " ".join(p.info["cmdline"] or []).startswith(title) and (
                p.environ().get(MARKER_VARIABLE) == str(folder)
            ):
                found.append(p)
        except psutil.Error:
            continue
    return found
