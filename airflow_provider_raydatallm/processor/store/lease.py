"""Who may work on a slice: a lease by epochs.

`epoch-000007` is created by one and never replaced; the highest one holds. Its holder writes its beat beside
it, over and over. Whoever watches a beat stay the same for `STALE_SECONDS` of its own monotonic clock takes
the holder for dead and creates the next epoch. No clocks are compared.

A holder that was paused and taken over finds out by `check`, which it calls before each step that others
could see. Between a check and its step it may be paused again: so those steps cannot harm either (create-only
files, names that hold the epoch, `Store.replace`).
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.storage import Store

CHECKPOINT = "_checkpoint"

BEAT_SECONDS = 4.0
STALE_SECONDS = 30.0

_FILE = re.compile(r"(?:beat|epoch)-(\d{6,})")
_EPOCH = re.compile(r"epoch-(\d{6,})")


class LeaseLostError(SliceError):
    """Another run holds the slice now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="transient")


class LeaseHolder:
    """What a watcher sees of the run that holds the slice."""

    def __init__(self, store: Store, epoch: int) -> None:
        self.epoch = epoch
        beat = store.read(_beat(epoch))
        self.seen = beat or store.read(_epoch(epoch)) or b""
        try:
            self.says: dict[str, Any] = json.loads(self.seen)
        except ValueError:
            self.says = {}

    @property
    def released(self) -> bool:
        return bool(self.says.get("released"))

    def __str__(self) -> str:
        return str(self.says.get("holder") or "another run")


def read_holder(store: Store) -> LeaseHolder | None:
    """The run that holds the slice now, whether it lives or not; None when there is none."""
    epochs = _epochs(store)
    if not epochs:
        return None
    found = LeaseHolder(store, max(epochs))
    return None if found.released else found


class Lease:
    """The right to work on a slice. Keeps its beat going until it is released."""

    def __init__(self, store: Store, epoch: int, me: str, mine: bytes) -> None:
        """:param mine: what this lease wrote into its epoch's file."""
        self.epoch = epoch
        self._store = store
        self._me = me
        self._mine = mine
        self._said: dict[str, Any] = {}
        self._lost = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="ray-llm-beat", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls,
        store: Store,
        *,
        me: str,
        floor: Callable[[], int],
        wait: bool,
        waiting: Callable[[LeaseHolder], bool],
        stale_seconds: float | None = None,
    ) -> Lease | None:
        """Take the slice, at once when nobody holds it, else when its holder releases it or is dead.

        :param me: the holder's name, for people.
        :param floor: the epoch of what is published now: ours is higher.
        :param wait: whether to wait for a holder that lives.
        :param waiting: called every second while a holder lives; True ends the waiting, without a lease.
        :raises SliceError: when another run holds the slice and `wait` is False.
        """
        stale = STALE_SECONDS if stale_seconds is None else stale_seconds
        mine = json.dumps({"holder": me, "nonce": uuid.uuid4().hex}).encode()
        seen: tuple[int, bytes] | None = None
        since = time.monotonic()
        while True:
            epochs = _epochs(store)
            top = max(epochs, default=0)
            other = LeaseHolder(store, top) if epochs else None
            same = other is not None and seen == (other.epoch, other.seen)
            if other is None or other.released or (same and time.monotonic() - since >= stale):
                # What was published is looked up after the epochs: a holder publishes before it takes its
                # epoch away, so that no epoch is ever given twice to runs that could meet.
                epoch = max(top, floor()) + 1
                if store.create(_epoch(epoch), mine):
                    remove_leases(store, epoch - 1)
                    return cls(store, epoch, me, mine)
                seen = None
                continue
            if not same:
                if seen is not None and not wait:
                    raise SliceError(
                        f"{other} is at work on {store.url} and on_running is 'fail': wait for it, or set "
                        "on_running='attach'",
                        kind="transient",
                    )
                seen, since = (other.epoch, other.seen), time.monotonic()
            if waiting(other):
                return None
            time.sleep(min(1.0, stale / 4))

    def say(self, progress: dict[str, Any]) -> None:
        """What attached runs see of this one."""
        self._said = progress

    def check(self) -> None:
        """:raises LeaseLostError: when the slice is another run's now."""
        top = max(_epochs(self._store), default=0)
        if self._lost or top != self.epoch or self._store.read(_epoch(top)) != self._mine:
            self._lost = True
            successor = LeaseHolder(self._store, top) if top else "another run"
            raise LeaseLostError(
                f"the lease on {self._store.url} was lost to {successor} after missed heartbeats; stopping"
            )

    @property
    def lost(self) -> bool:
        return self._lost

    def close(self) -> None:
        """Release: let the next run in at once. What goes wrong with that must not hide what the run failed
        of: the next one then waits until this lease is stale."""
        self._stop.set()
        self._thread.join(timeout=10)
        if self._lost:
            return
        try:
            remove_leases(self._store, self.epoch - 1)
            if any(_FILE.fullmatch(n) is None for n in self._store.names(CHECKPOINT)):
                self._store.put(_beat(self.epoch), self._beat(released=True))
            else:
                remove_leases(self._store, self.epoch)
        except Exception as e:
            print(f"warning: the lease of {self._store.url} could not be released: {e}", file=sys.stderr)

    def _keep_beating(self) -> None:
        while not self._lost:
            try:
                self._store.put(_beat(self.epoch), self._beat())
                self._lost = max(_epochs(self._store), default=0) != self.epoch
            except Exception:
                pass  # storage that is away for a while: whoever watches sees no beat either
            if self._stop.wait(BEAT_SECONDS):
                return

    def _beat(self, **more: Any) -> bytes:
        return json.dumps({"holder": self._me, "beat": uuid.uuid4().hex, **self._said, **more}).encode()


def remove_leases(store: Store, epoch: int) -> None:
    """Remove the files of leases up to an epoch whose holder needs them no more, the beats first: a beat
    without its epoch is nobody's."""
    for name in store.names(CHECKPOINT):
        match = _FILE.fullmatch(name)
        if match is not None and int(match[1]) <= epoch:
            store.remove(f"{CHECKPOINT}/{name}")
    store.remove_scratch(CHECKPOINT)
    store.remove_empty(CHECKPOINT)


def _epoch(epoch: int) -> str:
    return f"{CHECKPOINT}/epoch-{epoch:06}"


def _beat(epoch: int) -> str:
    return f"{CHECKPOINT}/beat-{epoch:06}"


def _epochs(store: Store) -> list[int]:
    return [int(m[1]) for n in store.names(CHECKPOINT) if (m := _EPOCH.fullmatch(n))]
