"""Who may work on a slice: a lease by epochs.

One run creates `epoch-000007`, which is never replaced; the highest epoch holds the lease. Its holder renews
a beat beside it. A watcher that sees the beat unchanged for `STALE_SECONDS` of its own monotonic clock
assumes that the holder is dead and creates the next epoch. No clocks are compared.

The lease saves work: of two runs, one answers. What is published does not rest on it: a holder that was
paused and taken over harms nothing when it wakes up (`publish.commit`). It notices by `check`.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.file_names import CHECKPOINT, NUMBER, following

logger = logging.getLogger(__name__)

LEASE = "lease"

BEAT_SECONDS = 4.0
STALE_SECONDS = 30.0

_FILE = re.compile(rf"(?:beat|epoch)-({NUMBER})")
_EPOCH = re.compile(rf"epoch-({NUMBER})")
#: Of a file of a lease: a beat holds its run's progress.
_MAX_BYTES = 1 << 20


class LeaseLostError(SliceError):
    """Another run holds the slice now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="transient")


class LeaseHolder:
    """The run that holds a slice, as others see it. `beat`: its last one, with its progress."""

    def __init__(self, store: Store, epoch: int) -> None:
        self.epoch = epoch
        self.beat_bytes = _read(store, _beat(epoch)) or _read(store, _epoch(epoch)) or b""
        try:
            beat = json.loads(self.beat_bytes)
        except (ValueError, RecursionError):
            beat = None
        self.beat: dict[str, Any] = beat if isinstance(beat, dict) else {}

    def is_same_beat(self, later: LeaseHolder) -> bool:
        """Whether it has not beaten until that later look."""
        return (self.epoch, self.beat_bytes) == (later.epoch, later.beat_bytes)

    @property
    def released(self) -> bool:
        return bool(self.beat.get("released"))

    @property
    def slice_key(self) -> str | None:
        key = self.beat.get("slice_key")
        return key if isinstance(key, str) else None

    def __str__(self) -> str:
        return str(self.beat.get("holder") or "another run")


def read_holder(store: Store, *, released: bool = False) -> LeaseHolder | None:
    """The run that holds the slice, whether it is alive or not; None when there is none.

    :param released: also the last one, which holds it no longer.
    """
    epochs = _epochs(store)
    if not epochs:
        return None
    holder = LeaseHolder(store, max(epochs))
    return None if holder.released and not released else holder


def newest_epoch(store: Store) -> int:
    """The epoch of the last lease whose files are there; 0 when there is none."""
    return max(_epochs(store), default=0)


class Lease:
    """The right to work on a slice. Renews its beat until it is closed."""

    def __init__(self, store: Store, epoch: int, me: str, slice_key: str, content: bytes) -> None:
        """:param content: what this lease wrote into its epoch's file."""
        self.epoch, self.name = epoch, me
        self._store = store
        self._slice_key = slice_key
        self._content = content
        self._progress: dict[str, Any] = {}
        self._lost = False
        self._is_superseded: Callable[[], bool] | None = None
        self._superseded = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="ray-llm-beat", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls,
        store: Store,
        *,
        me: str,
        slice_key: str,
        known_epoch: Callable[[], int],
        wait: bool,
        stop_waiting: Callable[[LeaseHolder], bool],
        is_over: Callable[[LeaseHolder], bool] = lambda holder: False,
        stale_seconds: float | None = None,
    ) -> Lease | None:
        """Acquires the lease: at once when it is free, else when its holder releases it or is dead.

        :param me: the holder's name, for people.
        :param slice_key: whose slice it is: where names of folders begin alike, they do not tell.
        :param known_epoch: the newest of what runs published or kept: ours is higher.
        :param wait: whether to wait for a holder that is alive.
        :param stop_waiting: called every second while a holder is alive; True ends the wait without a lease.
        :param is_over: whether a holder is known to be dead, or to have no more to do.
        :raises SliceError: when another run holds the slice and `wait` is False.
        """
        stale = STALE_SECONDS if stale_seconds is None else stale_seconds
        content = json.dumps({"holder": me, "slice_key": slice_key, "nonce": uuid.uuid4().hex}).encode()
        watched: LeaseHolder | None = None
        since = time.monotonic()
        while True:
            epochs = _epochs(store)
            top = max(epochs, default=0)
            holder = LeaseHolder(store, top) if epochs else None
            is_same = holder is not None and watched is not None and watched.is_same_beat(holder)
            is_stale = is_same and time.monotonic() - since >= stale
            if holder is None or holder.released or is_stale or is_over(holder):
                # The known epoch is read after the listing: a holder publishes before it removes its
                # epoch, so that two runs that could meet never get the same epoch.
                last = max(top, known_epoch())
                epoch = following(last, store.path(_epoch(last)))
                if store.create(_epoch(epoch), content):
                    remove_leases(store, epoch - 1)
                    return cls(store, epoch, me, slice_key, content)
                watched = None
                continue
            if not is_same:
                if watched is not None and not wait:
                    raise SliceError(
                        f"{holder} is at work on {store.url} and rerun.on_running is 'fail'",
                        kind="transient",
                        advice="Wait for it, or set rerun.on_running='attach'",
                    )
                watched, since = holder, time.monotonic()
            if stop_waiting(holder):
                return None
            time.sleep(min(1.0, stale / 4))

    def set_progress(self, progress: dict[str, Any]) -> None:
        """Shows this run's progress to the runs that wait for it."""
        self._progress = progress

    def check(self) -> None:
        """:raises LeaseLostError: when another run holds the slice."""
        top = newest_epoch(self._store)
        if self._lost or top != self.epoch or _read(self._store, _epoch(top)) != self._content:
            self._lost = True
            successor = LeaseHolder(self._store, top) if top else "another run"
            raise LeaseLostError(
                f"the lease on {self._store.url} was lost to {successor} after missed heartbeats"
            )

    def watch(self, is_superseded: Callable[[], bool] | None) -> None:
        """:param is_superseded: called at each beat; once it returns True, `superseded` is True."""
        self._is_superseded, self._superseded = is_superseded, False

    @property
    def superseded(self) -> bool:
        return self._superseded

    @property
    def lost(self) -> bool:
        return self._lost

    def close(self) -> None:
        """Releases the lease, so that the next run can start at once.

        A failure here must not hide the run's own: the next run then waits until this lease is stale.
        """
        self._stop.set()
        self._thread.join(timeout=10)
        if self._lost:
            return
        try:
            remove_leases(self._store, self.epoch - 1)
            if self._store.names(CHECKPOINT):
                self._write_beat(released=True)
            else:
                remove_leases(self._store, self.epoch)
        except Exception as e:
            logger.warning("could not release the lease of %s: %s", self._store.url, e)

    def _keep_beating(self) -> None:
        while not self._lost:
            try:
                self._write_beat()
                self._lost = newest_epoch(self._store) != self.epoch
                if self._is_superseded is not None and self._is_superseded():
                    self._superseded = True
            except Exception:
                pass  # the storage is away for a while: watchers see no beat either
            if self._stop.wait(BEAT_SECONDS):
                return

    def _write_beat(self, **more: Any) -> None:
        identity = {"holder": self.name, "slice_key": self._slice_key}
        beat = {**self._progress, **identity, "beat": uuid.uuid4().hex, **more}
        self._store.put(_beat(self.epoch), json.dumps(beat).encode())


def remove_leases(store: Store, epoch: int) -> None:
    """Removes the files of leases up to an epoch, the beats first: a beat without its epoch holds nothing."""
    for name in store.names(LEASE):
        match = _FILE.fullmatch(name)
        if match is not None and int(match[1]) <= epoch:
            store.remove_file(f"{LEASE}/{name}")
    store.remove_scratch(LEASE)
    store.remove_empty(LEASE)


def _read(store: Store, name: str) -> bytes | None:
    """The content of a lease's file; None where there is none, or what others put in its place."""
    try:
        return store.read(name, _MAX_BYTES)
    except CorruptFileError:
        return None


def _epoch(epoch: int) -> str:
    return f"{LEASE}/epoch-{epoch:06}"


def _beat(epoch: int) -> str:
    return f"{LEASE}/beat-{epoch:06}"


def _epochs(store: Store) -> list[int]:
    return [int(m[1]) for n in store.names(LEASE) if (m := _EPOCH.fullmatch(n))]
