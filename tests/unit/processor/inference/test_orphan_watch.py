"""A job publishes only when a fresh beat says that its task still waits, and ends when no beats come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from airflow_provider_raydatallm.contract.job.heartbeat import CONFIRMED
from airflow_provider_raydatallm.processor.inference import orphan_watch
from airflow_provider_raydatallm.processor.inference.orphan_watch import OrphanWatch
from tests.support.key_value_store import replace_store
from tests.support.waiting import wait_for

INTERVAL = 0.1
STALE = 3 * INTERVAL


class Waiter:
    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = keys
        #: How often the job asked for a confirmation again.
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1

    def beat(self, prefix: str = "") -> None:
        self._keys["gcs://beat"] = (prefix + uuid.uuid4().hex).encode()


@pytest.fixture
def waiter(monkeypatch: pytest.MonkeyPatch) -> Waiter:
    monkeypatch.setattr(orphan_watch, "connect_to_ray", lambda: None)
    monkeypatch.setattr(orphan_watch, "PUBLISHING_SECONDS", INTERVAL)
    monkeypatch.setattr(orphan_watch, "_POLL_SECONDS", 0.01)
    return Waiter(replace_store(monkeypatch))


def publish(watch: OrphanWatch, waiter: Waiter) -> threading.Event:
    published = threading.Event()

    def run() -> None:
        watch.wait_for_waiter(waiter.ask)
        published.set()

    threading.Thread(target=run, daemon=True).start()
    return published


@pytest.fixture
def watch(waiter: Waiter, monkeypatch: pytest.MonkeyPatch) -> OrphanWatch:
    """One that stops nobody: its thread would outlive the test, and end the session's process."""
    monkeypatch.setattr(OrphanWatch, "_watch", lambda self: None)
    return OrphanWatch("beat", 600)


@pytest.mark.slow
def test_job_publishes_when_a_beat_confirms_that_its_task_waits(waiter: Waiter, watch: OrphanWatch) -> None:
    waiter.beat()
    published = publish(watch, waiter)
    for _ in range(5):
        waiter.beat()  # of a waiter that has not asked Airflow
        assert not published.wait(INTERVAL)
    assert waiter.asked
    waiter.beat(CONFIRMED)
    assert published.wait(5)


@pytest.mark.slow
def test_confirmation_of_a_waiter_that_died_is_worth_nothing(waiter: Waiter, watch: OrphanWatch) -> None:
    waiter.beat(CONFIRMED)
    watch._silent_s()
    time.sleep(STALE + INTERVAL)
    published = publish(watch, waiter)
    assert not published.wait(STALE)
    waiter.beat(CONFIRMED)
    assert published.wait(5)


@pytest.mark.slow
def test_job_without_a_waiter_ends_itself_and_one_with_beats_does_not(
    waiter: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    watch = OrphanWatch("beat", 1.2)
    for _ in range(20):
        waiter.beat()
        time.sleep(0.1)
    assert not killed
    wait_for(lambda: killed)
    assert (killed, watch.has_stopped) == ([(os.getpid(), signal.SIGTERM)], True)


_JOB_THAT_ANSWERS_NOTHING = """
from airflow_provider_raydatallm.processor.inference import orphan_watch

def connect_to_ray():
    import ray

orphan_watch.connect_to_ray = connect_to_ray
orphan_watch.OrphanWatch("beat", 600)
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.state import get_job
"""


def test_job_that_starts_no_engine_finds_ray_whole_beside_its_watch() -> None:
    """It comes to parts of Ray while the watch's thread imports it."""
    done = subprocess.run([sys.executable, "-c", _JOB_THAT_ANSWERS_NOTHING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
