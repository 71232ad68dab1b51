"""One run at a time works on a slice, and one that is taken over finds out."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import lease as lease_module
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT
from airflow_provider_raydatallm.processor.store.lease import (
    LEASE,
    Lease,
    LeaseHolder,
    LeaseLostError,
    read_holder,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease_module, "STALE_SECONDS", 0.4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "slice"))


def try_acquire(store: Store, **given: Any) -> Lease | None:
    least = {"me": "me", "slice_key": "k", "known_epoch": lambda: 0, "wait": True}
    return Lease.acquire(store, **{**least, "stop_waiting": lambda holder: False, **given})


def acquire(store: Store, **given: Any) -> Lease:
    lease = try_acquire(store, **given)
    assert lease is not None
    return lease


def wait_for_beat(store: Store, seen: LeaseHolder) -> bool:
    """Waits for the holder's next beat: on a busy machine it may be late enough to look dead. Returns False,
    for `stop_waiting`."""
    while (now := read_holder(store)) is not None and now.beat_bytes == seen.beat_bytes:
        time.sleep(0.01)
    return False


def kill(lease: Lease) -> None:
    """Stops the beat without a release, as SIGKILL does."""
    lease._stop.set()
    lease._thread.join()


def test_free_slice_is_leased_at_once_and_leaves_nothing_behind(store: Store) -> None:
    lease = acquire(store)
    assert lease.epoch == 1
    lease.check()
    assert str(read_holder(store)) == "me"
    lease.close()
    assert read_holder(store) is None
    assert store.names() == []


def test_epochs_continue_above_the_published_one(store: Store) -> None:
    lease = acquire(store, known_epoch=lambda: 41)
    assert lease.epoch == 42
    lease.close()


def test_released_slice_with_a_checkpoint_is_leased_at_once(store: Store) -> None:
    first = acquire(store)
    store.put(f"{CHECKPOINT}/0123456789abcdef/f.arrow", b"")
    first.close()
    second = acquire(store, stop_waiting=lambda other: pytest.fail("it is waited for"))
    assert second.epoch == 2
    second.close()
    assert store.names(LEASE) == ["beat-000002", "epoch-000002"]


@pytest.mark.slow
def test_holder_that_lives_is_waited_for(store: Store) -> None:
    first = acquire(store, me="first")
    first.set_progress({"rows": 7})
    seen: list[LeaseHolder] = []
    until = time.monotonic() + 1  # longer than a dead one is waited for

    def waiting(other: LeaseHolder) -> bool:
        seen.append(other)
        wait_for_beat(store, other)
        if other.beat.get("rows") == 7 and time.monotonic() > until:
            first.check()
            first.close()
        return False

    second = acquire(store, stop_waiting=waiting)
    assert {str(h) for h in seen} == {"first"}
    second.close()


def test_waiting_ends_when_there_is_nothing_left_to_do(store: Store) -> None:
    first = acquire(store)
    assert try_acquire(store, stop_waiting=lambda holder: True) is None
    first.check()
    first.close()


def test_policy_fail_does_not_wait_for_a_holder_that_lives(store: Store) -> None:
    first = acquire(store, me="first")
    with pytest.raises(SliceError, match=r"first is at work on .*'attach'"):
        acquire(store, wait=False, stop_waiting=lambda other: wait_for_beat(store, other))
    first.close()


def test_holder_that_has_no_more_to_do_is_taken_over_at_once(store: Store) -> None:
    first = acquire(store, me="first")
    second = acquire(store, is_over=lambda holder: str(holder) == "first")
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeaseLostError, match="was lost to"):
        first.check()
    first.close()
    second.close()


@pytest.mark.parametrize("wait", [True, False])
def test_killed_holder_is_taken_over(store: Store, wait: bool) -> None:
    first = acquire(store)
    kill(first)
    second = acquire(store, wait=wait)
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeaseLostError, match="was lost to"):
        first.check()
    second.check()
    first.close()  # what a late holder does at its end takes nothing from the next
    second.check()
    second.close()


def test_holder_notices_by_its_beat_that_it_was_taken_over(store: Store) -> None:
    first = acquire(store)
    store.create(f"{LEASE}/epoch-000002", b'{"holder": "second"}')
    for _ in range(15_000):
        if first.lost:
            break
        time.sleep(0.02)
    assert first.lost


def test_epoch_of_another_run_is_not_mistaken_for_its_own(store: Store) -> None:
    first = acquire(store)
    kill(first)
    store.remove(f"{LEASE}/epoch-000001")
    store.create(f"{LEASE}/epoch-000001", json.dumps({"holder": "another"}).encode())
    with pytest.raises(LeaseLostError):
        first.check()


@pytest.mark.slow
def test_one_of_many_waiting_runs_takes_over(store: Store) -> None:
    first = acquire(store)
    kill(first)
    won: list[Lease] = []

    def wait() -> None:
        lease = try_acquire(store, stop_waiting=lambda holder: bool(won))
        if lease is not None:
            won.append(lease)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [lease.epoch for lease in won] == [2]
    won[0].check()
    won[0].close()
