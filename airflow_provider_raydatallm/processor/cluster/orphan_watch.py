"""Ends a job that nothing waits for.

The task that waits for a job renews a value in the cluster's key-value store (`jobs_api.send_heartbeat`). If
the value stays unchanged for `orphan_timeout`, the job stops itself; its finished rows are kept.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray


def stop_when_orphaned(heartbeat_key: str, timeout_s: float) -> threading.Event:
    """Sends SIGTERM to this process when the heartbeat has not changed for `timeout_s`; sets the returned
    event before."""
    orphaned = threading.Event()
    arguments = (heartbeat_key, timeout_s, orphaned)
    threading.Thread(target=_watch, args=arguments, name="ray-llm-orphan", daemon=True).start()
    return orphaned


def _watch(heartbeat_key: str, timeout_s: float, orphaned: threading.Event) -> None:
    from ray.experimental.internal_kv import _internal_kv_get

    last_heartbeat, since = None, time.monotonic()
    while time.monotonic() - since < timeout_s:
        time.sleep(min(timeout_s / 12, 60.0))
        try:
            connect_to_ray()
            # The Jobs API stores the value as a package of code, under its URI.
            heartbeat = _internal_kv_get(f"gcs://{heartbeat_key}".encode())
        except Exception:
            continue  # the store is unreachable, perhaps for the waiting task too
        if heartbeat != last_heartbeat:
            last_heartbeat, since = heartbeat, time.monotonic()
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
