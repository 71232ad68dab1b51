"""What shared engines hold of a cluster, in words: for who lists them, and whose run had no memory."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from airflow_provider_raydatallm.contract.log.progress_text import amounts_text
from airflow_provider_raydatallm.contract.result.failure_patterns import is_out_of_memory
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.engines.shared import serve_apps
from airflow_provider_raydatallm.processor.engines.shared.serve_apps import SharedEngine
from airflow_provider_raydatallm.processor.ray_runtime.driver import process_log
from airflow_provider_raydatallm.processor.root_error import root_error


def holdings_text(engine: SharedEngine) -> str:
    """Such as `holds 3.6 GB of memory, idle for 95 s`."""
    holds = amounts_text(engine.holds)
    use = "in use" if engine.users else f"idle for {engine.idle_s:,.0f} s"
    return f"holds {holds}, {use}" if holds else use


def name_engines_that_hold_memory(error: Any, run: Engine) -> None:
    """Adds to a run's error, if memory ran out, which shared engines beside its own hold some; nothing where
    Serve does not answer."""
    with contextlib.suppress(Exception):
        failure = root_error(error, process_log)
        if not is_out_of_memory(failure):
            return
        own = run.engine_to_keep
        engines = [e for e in serve_apps.SERVE.engines() if e.holds and e.name != own]
        if not engines:
            return
        longest_idle_first = sorted(engines, key=lambda e: -e.idle_s)
        named = ", ".join(f"{e.name} ({holdings_text(e)})" for e in longest_idle_first)
        advice = f"Shared engines hold memory, too: {named}. `airflow-ray-llm engines stop NAME` ends one"
        error.failure, error.log = replace(failure, advice=(*failure.advice, advice)), None
