"""Tries that die at any call of the Kubernetes API, while it fails, its operator restarts and heads die: no
cluster is left in the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raydatallm.clusters.base import ClusterStartingError
from airflow_provider_raydatallm.clusters.kuberay.api import KubernetesApi
from airflow_provider_raydatallm.exceptions import RayUnreachableError
from airflow_provider_raydatallm.task.job.tracker import JobTracker
from tests.support.context import StateStore
from tests.support.kube.tasks import World, eventually
from tests.support.marks import long

#: Of a task. From then on it lives, and ends.
MOST_TRIES = 6


class DiedError(BaseException):
    """No handler of the product's sees the end of a process."""


class Reaper:
    """Ends this thread's try before, or after, one of its next calls of the API."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._of_thread = threading.local()
        real = KubernetesApi._call

        def call(api: KubernetesApi, work: Callable[..., Any], **arguments: Any) -> Any:
            calls = getattr(self._of_thread, "calls", None)
            if calls is None:
                return real(api, work, **arguments)
            self._of_thread.calls = calls - 1
            if calls == 0 and self._of_thread.is_before:
                raise DiedError
            answer = real(api, work, **arguments)
            if calls == 0:
                raise DiedError
            return answer

        patch.setattr(KubernetesApi, "_call", call)

    def set(self, calls: int | None, *, is_before: bool = False) -> None:
        self._of_thread.calls, self._of_thread.is_before = calls, is_before


def disturb(world: World, choice: random.Random) -> None:
    kind, kube, operator = choice.random(), world.kube, world.operator
    if kind < 0.3:
        kube.fail(choice.choice(["patch", "create", "list", "delete"]), "rayjobs", choice.choice([429, 503]))
    elif kind < 0.4:
        kube.lose_answers(choice.choice(["create", "patch", "delete"]), "rayjobs")
    elif kind < 0.5:
        kube.cut_watches()
    elif kind < 0.6:
        operator.stop()
        operator.start()
    elif kind < 0.7:
        pods = [pod["metadata"] for pod in kube.objects("pods")]
        heads = [pod["name"] for pod in pods if pod["labels"]["ray.io/node-type"] == "head"]
        if heads:
            operator.kill_pod(choice.choice(heads), choice.choice(["Evicted", "OOMKilled"]))


def run_try(world: World, tracker: JobTracker, *, ends: bool, publishes: bool) -> bool:
    """Returns whether the task is over."""
    if (job := tracker.find_job()) is None:
        until = time.monotonic() + 60
        while True:
            try:
                tracker.hook.acquire()
                break
            except ClusterStartingError:
                time.sleep(0.02)
            except RayUnreachableError:
                tracker.hook.reread()
            assert time.monotonic() < until
        job = tracker.submit()
    if not ends:
        return False
    for head in getattr(world.operator.heads, "servers", {}).values():
        for submitted in head.jobs:
            if submitted["submission_id"] == job.submission_id:
                submitted["status"] = "SUCCEEDED"
    tracker.conclude({"outcome": "published"}) if publishes else tracker.mark_ended()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *map(long, range(4, 40))])
def test_nothing_is_left_whatever_dies(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    choice, reaper = random.Random(seed), Reaper(monkeypatch)
    stores = {f"task{n}": StateStore() if choice.random() < 0.7 else None for n in range(4)}
    shared = {key: {"name": "shared"} if choice.random() < 0.4 else {} for key in stores}
    tries = dict.fromkeys(stores, 1)
    while tries:
        for key in list(tries):
            number = tries[key]
            is_last = number >= MOST_TRIES
            tracker = world.tracker(key, stores[key], try_number=number, **shared[key])
            disturb(world, choice)
            dies = not is_last and choice.random() < 0.6
            reaper.set(choice.randint(0, 12) if dies else None, is_before=choice.random() < 0.5)
            try:
                ends = is_last or choice.random() < 0.6
                is_over = run_try(world, tracker, ends=ends, publishes=choice.random() < 0.7)
            except (DiedError, RayUnreachableError):
                is_over = False
            finally:
                reaper.set(None)
            if is_over:
                del tries[key]
            else:
                tries[key] += 1
    world.kube.forgive()
    eventually(world.nothing_is_left)
