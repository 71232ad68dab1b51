"""How feeders reach an engine's own workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines import workers
from airflow_provider_raydatallm.processor.engines.workers import OwnWorkers


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[], OwnWorkers]:
    """Three workers that are ready, as a feeder opens them."""
    monkeypatch.setattr(workers, "ready", lambda handle: f"ready {handle}")
    monkeypatch.setattr("ray.wait", lambda refs, num_returns, timeout=None: (refs[:num_returns], []))
    monkeypatch.setattr("ray.get", lambda ref: {"process": {"pid": ref}})
    handles: Any = ["a", "b", "c"]
    return lambda: OwnWorkers(handles)


def test_feeders_do_not_all_begin_with_the_same_worker(own: Callable[[], OwnWorkers]) -> None:
    asked = set()
    for _ in range(60):
        with own().least_busy(10) as worker:
            asked.add(worker.name)
    assert asked == {"0", "1", "2"}


def test_next_rows_go_to_the_worker_that_has_the_fewest(own: Callable[[], OwnWorkers]) -> None:
    there = own()
    with there.least_busy(10) as first, there.least_busy(9) as second, there.least_busy(3) as third:
        assert len({first.name, second.name, third.name}) == 3
        with there.least_busy(1) as fourth:
            assert fourth is third
