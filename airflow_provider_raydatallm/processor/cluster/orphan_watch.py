"""Whether anybody still waits for this job.

Who waits for a job renews a value in the cluster's key-value store (`hooks.jobs_api.beat`). A job whose task
was killed for good ends itself when the value has not changed for `orphan_timeout`; its finished rows are
kept.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from airflow_provider_raydatallm.processor.cluster.ray_cluster import connect_to_ray


def stop_when_orphaned(owner: str, timeout: float) -> threading.Event:
    """Watch for signs of whoever waits for this job, and tell this process to stop (SIGTERM) when there was
    none for so many seconds. The event that is returned is set before."""
    orphaned = threading.Event()
    threading.Thread(
        target=_watch, args=(owner, timeout, orphaned), name="ray-llm-owner", daemon=True
    ).start()
    return orphaned


def _watch(owner: str, timeout: float, orphaned: threading.Event) -> None:
    from ray.experimental.internal_kv import _internal_kv_get

    seen, since = None, time.monotonic()
    while time.monotonic() - since < timeout:
        time.sleep(min(timeout / 12, 60.0))
        try:
            connect_to_ray()
            # Ray keeps packages of code, which is what the Jobs API takes this for, under their URI.
            beat = _internal_kv_get(f"gcs://{owner}".encode())
        except Exception:
            continue  # the cluster's store is away: then nobody is heard, and nobody can be blamed for it
        if beat != seen:
            seen, since = beat, time.monotonic()
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
