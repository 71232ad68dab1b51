"""Named fail-points: where in a slice's life a process is struck, and how.

A step is what is being written or removed, told by the name of the file; `when` is before that operation, in
it or after it. They are put in place in the process that is to be struck, around the methods of `Store` and,
for what lies within them, around the calls of the system: the product knows nothing of them.

In an operation means: on a disk the scratch file is half written, or whole and not yet linked or renamed; on
S3 half of the body is sent when the connection ends, or a copy is asked for and nobody reads the answer; of
files that are removed together, one is gone. What `reconcile` looks at are steps, too.
"""

from __future__ import annotations

import asyncio.selector_events
import functools
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from airflow_provider_raydatallm.processor import version_policy
from airflow_provider_raydatallm.processor.publish import commit, reconcile, restore
from airflow_provider_raydatallm.processor.sinks.base import Sink
from airflow_provider_raydatallm.processor.sinks.folder import Shown
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import Commits

When = Literal["before", "in", "after"]

_CHECKPOINT = r"checkpoint/[^/]+"
_STAGED = r"staged/\d+-[0-9a-f]+"
#: (methods, file name, step); the first that fits counts.
_STEPS = [
    ("create", r"lease/epoch-\d+", "lease"),
    ("put", r"lease/beat-\d+", "beat"),
    ("create", _CHECKPOINT + r"/plan-.*", "plan"),
    ("put", _CHECKPOINT + r"/carried\d+-rows-.*", "carried-over fragment"),
    ("put", _CHECKPOINT + r"/rows-.*", "fragment"),
    ("put create", _CHECKPOINT + r"/(?:golden|repeat|judge)-[^/]+/.*", "file of a probe"),
    ("put", _CHECKPOINT + r"/again-.*", "rejection"),
    ("put", _CHECKPOINT + r"/(?:failed|invalid|cut)-.*", "failed fragment"),
    ("create", _CHECKPOINT + r"/carried-over-\d+\.json", "carried-over mark"),
    ("put_file", _STAGED + r"/part-.*", "staged part"),
    ("put_file", _STAGED + r"/quarantine-.*", "staged quarantine"),
    ("put", _STAGED + r"/_SUCCESS", "staged marker"),
    ("create", r"plans/.*", "plan of the version"),
    ("create", r"staged_versions/.*", "document"),
    ("create", r"commits/commit-.*", "commit"),
    ("remove_file", r"staged_versions/.*", "removal of the document"),
    ("place", r"kept/.*", "kept copy"),
    ("remove remove_file", _STAGED + r"/.*", "removal of staged data"),
    ("remove remove_file", r"_SUCCESS", "removal of _SUCCESS"),
    ("remove remove_file", r"(?:part|quarantine)-.*\.parquet", "removal of an older file"),
    ("place", r"(?:part|quarantine)-.*\.parquet", "placing a file"),
    ("place", r"_SUCCESS", "placing _SUCCESS"),
    ("put", r"reports/.*", "report"),
    ("put", r"commits/complete-.*", "complete mark"),
    ("remove remove_file", r"plans/.*|commits/complete-.*|kept/.*", "removal of what was kept"),
    ("remove_all", _CHECKPOINT + "/.*", "removal of checkpoint"),
    ("remove remove_file", r"lease/(?:epoch|beat)-\d+", "release"),
    ("put remove_file", r"progress\.json", "progress"),
]
_METHODS = ("create", "put", "put_file", "place", "remove", "remove_file", "remove_all")
#: What `reconcile` looks at: (where in the product, name, step).
_LOOKS = ((Commits, "list", "look at the commits"), (Shown, "list", "look at the folders"))
#: Written to the middle of nothing: one file is removed or it is not.
WITHOUT_MIDDLE = {
    "removal of _SUCCESS", "release", "removal of an older file", "removal of old lease",
    "removal by the fence", "removal of staged data", "removal of what was kept",
    "removal of the document", *(step for *_, step in _LOOKS),
}  # fmt: skip


@dataclass(frozen=True)
class FailPoint:
    """`occurrence`: the how-manieth time that this step is met. `torn`: half written, where that is a
    choice."""

    step: str
    when: When
    occurrence: int = 1
    torn: bool = False
    signal: int = signal.SIGKILL

    def __str__(self) -> str:
        return f"{self.when} {self.step} #{self.occurrence}{' (torn)' if self.torn else ''}"


def install(*points: FailPoint) -> None:
    """Strike this process at each of the points, in turn."""
    _Strike(points).install()


class _Strike:
    def __init__(self, points: Sequence[FailPoint]) -> None:
        self._points = list(points)
        self._met = 0
        #: What the product is at, that no file name tells.
        self._at: set[str] = set()
        self._own_epoch = ""
        self._lock = threading.Lock()
        self._here = threading.local()

    def install(self) -> None:
        for method in _METHODS:
            setattr(Store, method, self._around(method, getattr(Store, method)))
        for owner, name, step in _LOOKS:
            setattr(owner, name, self._around_look(step, getattr(owner, name)))
        Sink.fence = self._during("fence", Sink.fence)
        whole = self._during("reconcile", reconcile.reconcile)
        for module in (reconcile, commit, version_policy, restore):
            module.reconcile = whole

    def _during(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def during(*args: Any) -> Any:
            self._at.add(what)
            try:
                return original(*args)
            finally:
                self._at.discard(what)

        return during

    def _around_look(self, step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def struck(*args: Any) -> Any:
            point = self._meet(step) if "reconcile" in self._at else None
            if point is not None and point.when == "before":
                self.strike(point)
            result = original(*args)
            if point is not None and point.when != "before":
                self.strike(point)
            return result

        return struck

    def strike(self, point: FailPoint) -> None:
        """Once: who is only stopped goes on from there."""
        if self._points and self._points[0] is point:
            self._points.pop(0)
            self._met = 0
            os.kill(os.getpid(), point.signal)

    def _around(self, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def struck(store: Store, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "inside", False):
                return original(store, *args, **kwargs)
            self._here.inside = True
            try:
                name = args[2] if method == "place" else args[0]
                if method == "remove_all":
                    name = next(iter(name), "")
                point = self._meet(self._step(method, name))
                if point is None:
                    return original(store, *args, **kwargs)
                if point.when == "before":
                    self.strike(point)
                within = self._inside(store, method, name, point) if point.when == "in" else nullcontext()
                try:
                    with within:
                        result = original(store, *args, **kwargs)
                except Exception:  # this one did not come so far
                    self._met -= 1
                    raise
                self.strike(point)
                return result
            finally:
                self._here.inside = False

        return struck

    def _step(self, method: str, name: str) -> str:
        step = next((s for m, n, s in _STEPS if method in m.split() and re.fullmatch(n, name)), "")
        if step == "removal of staged data" and "fence" in self._at:
            step = "removal by the fence"
        if step == "lease":
            self._own_epoch = name[-6:]
        if step == "release" and name[-6:] != self._own_epoch:
            step = "removal of old lease"
        return step

    def _meet(self, step: str) -> FailPoint | None:
        """The point whose turn it is, if this is its step."""
        with self._lock:
            point = self._points[0] if self._points else None
            if point is None or step != point.step:
                return None
            self._met += 1
            return point if self._met >= point.occurrence else None

    def _strike_first(self, original: Callable[..., Any], point: FailPoint) -> Callable[..., Any]:
        def struck(*args: Any, **kwargs: Any) -> Any:
            self.strike(point)
            return original(*args, **kwargs)

        return struck

    @contextmanager
    def _inside(self, store: Store, method: str, name: str, point: FailPoint) -> Iterator[None]:
        """Strikes in the middle of what is done meanwhile, by this thread or with that file."""
        if not store.is_local:
            whole = method.startswith("remove") or (method == "place" and not point.torn)
            _cut_request(name, method, whole, functools.partial(self.strike, point))
            yield
            return
        here = threading.get_ident()

        def only_here(original: Callable[..., Any], middle: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def patched(*args: Any, **kwargs: Any) -> Any:
                return (middle if threading.get_ident() == here else original)(*args, **kwargs)

            return patched

        remove = os.remove

        def one_less(*args: Any, **kwargs: Any) -> None:
            remove(*args, **kwargs)
            self.strike(point)

        def half_written(path: Any, data: bytes) -> None:
            with open(path, "xb") as f:
                f.write(data[: len(data) // 2])
                f.flush()
                self.strike(point)
                f.write(data[len(data) // 2 :])

        def half_copied(source: Any, to: Any, *rest: Any) -> None:
            data = source.read()
            to.write(data[: len(data) // 2])
            to.flush()
            self.strike(point)
            to.write(data[len(data) // 2 :])

        if method == "remove_all":
            os.remove = only_here(os.remove, one_less)
        elif point.torn and method != "place":  # a link is there or it is not
            disk.write = only_here(disk.write, half_written)
            shutil.copyfileobj = only_here(shutil.copyfileobj, half_copied)
        else:
            os.link = only_here(os.link, self._strike_first(os.link, point))
            os.replace = only_here(os.replace, self._strike_first(os.replace, point))
        yield


def _cut_request(name: str, method: str, whole: bool, strike: Callable[[], None]) -> None:
    """Strike when half of the request for that file is sent, or all of it and no answer is read: its first
    such request."""
    transport = asyncio.selector_events._SelectorSocketTransport
    write = transport.write
    wanted = quote(name.rpartition("/")[2]).encode()
    done: list[bool] = []
    bodies: dict[int, tuple[int, int]] = {}  # of a transport: bytes of the body to send, and sent

    def cut(self: Any, data: Any) -> None:
        data = bytes(data)
        start = 0
        if id(self) not in bodies:
            head, end, _ = data.partition(b"\r\n\r\n")
            line = head.split(b"\r\n", 1)[0]
            verb = b"DELETE " if method == "remove_file" else b"PUT "
            is_it = b"delete" in line if method == "remove_all" else line.startswith(verb) and wanted in line
            if done or not end or not is_it:
                return write(self, data)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            size = int(length[1]) if length else 0
            if not size:
                half = len(data) if whole else len(data) // 2
                write(self, data[:half])
                done.append(True)
                strike()
                return write(self, data[half:]) if data[half:] else None
            bodies[id(self)] = (size, 0)
            start = len(head) + len(end)
        size, sent = bodies[id(self)]
        if sent + len(data) - start < size // 2 or method == "remove_all":
            bodies[id(self)] = (size, sent + len(data) - start)
            write(self, data)
            if method == "remove_all" and sent + len(data) - start >= size:
                strike()  # the request is out, nobody reads the answer
            return None
        write(self, data[: start + size // 2 - sent])
        del bodies[id(self)]
        done.append(True)
        strike()
        return write(self, data[start + size // 2 - sent :])

    transport.write = cut
    transport.writelines = lambda self, chunks: cut(self, b"".join(bytes(c) for c in chunks))
