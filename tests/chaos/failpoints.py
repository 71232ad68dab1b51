"""Named fail-points: where in a slice's life a process is struck, and how.

A step is what is being written or removed, told by the name of the file; `when` is before that operation, in
it or after it. They are put in place in the process that is to be struck, around the methods of `Store` and,
for what lies within them, around the calls of the system: the product knows nothing of them.

In an operation means: on a disk the scratch file is half written, or whole and not yet linked or renamed; on
S3 half of the body is sent when the connection ends; of a folder that is removed, one file is gone.
"""

from __future__ import annotations

import asyncio.selector_events
import contextlib
import functools
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from airflow_provider_raydatallm.processor import disk, version_build
from airflow_provider_raydatallm.processor.storage import Store

When = Literal["before", "in", "after"]

_FOLDER = "_checkpoint/v[^/]+"
#: (methods, file name, step); the first that fits counts.
_STEPS = [
    ("create", r"_checkpoint/epoch-\d+", "lease"),
    ("put", r"_checkpoint/beat-\d+", "beat"),
    ("create", _FOLDER + r"/plan-.*", "plan"),
    ("put", _FOLDER + r"/rows-.*", "fragment"),
    ("put", _FOLDER + r"/failed-.*", "failed fragment"),
    ("create", _FOLDER + r"/carried_over\.json", "seeded mark"),
    ("create", _FOLDER + r"/seal-.*", "seal"),
    ("replace put_file", r"part-.*", "part"),
    ("put_file", r"_quarantine/.*", "quarantine"),
    ("copy", r"_versions/.*", "kept copy"),
    ("create", r"_versions/plan-.*", "plan copy"),
    ("create", r"_versions/commit-.*", "commit"),
    ("put", r"_manifest\.json", "manifest"),
    ("put", r"_report\.json", "report"),
    ("put", r"_SUCCESS", "_SUCCESS"),
    ("put remove", r"_progress\.json", "progress"),
    ("remove", r"_SUCCESS", "removal of _SUCCESS"),
    ("remove", _FOLDER, "removal of checkpoint"),
    ("remove", r"_checkpoint/(?:epoch|beat)-\d+", "release"),
    ("remove", r".*", "removal of old file"),
]
_METHODS = ("create", "put", "replace", "put_file", "copy", "remove")
#: Written to the middle of nothing: one file is removed or it is not.
WITHOUT_MIDDLE = {"removal of _SUCCESS", "release", "removal of old file", "removal of old lease"}


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


def install(point: FailPoint) -> None:
    """Strike this process at the point."""
    _Strike(point).install()


class _Strike:
    def __init__(self, point: FailPoint) -> None:
        self._point = point
        self._met = 0
        self._struck = False
        self._seeding = False
        self._own_epoch = ""
        self._lock = threading.Lock()
        self._here = threading.local()

    def install(self) -> None:
        for method in _METHODS:
            setattr(Store, method, self._around(method, getattr(Store, method)))
        seed = version_build.carry_over_rows

        def seeding(*args: Any) -> None:
            self._seeding = True
            try:
                seed(*args)
            finally:
                self._seeding = False

        version_build.carry_over_rows = seeding

    def strike(self) -> None:
        """Once: who is only stopped goes on from there."""
        if not self._struck:
            self._struck = True
            os.kill(os.getpid(), self._point.signal)

    def _around(self, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def struck(store: Store, name: str, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "inside", False):
                return original(store, name, *args, **kwargs)
            self._here.inside = True
            try:
                target = args[0] if method == "copy" else name
                if not self._is_met(method, target):
                    return original(store, name, *args, **kwargs)
                if self._point.when == "before":
                    self.strike()
                if self._point.when == "in":
                    with self._inside(store, method, target):
                        if method == "replace" and not self._point.torn:
                            args = (args[0], self._then_strike(args[1]), *args[2:])
                        result = original(store, name, *args, **kwargs)
                else:
                    result = original(store, name, *args, **kwargs)
                self.strike()
                return result
            finally:
                self._here.inside = False

        return struck

    def _is_met(self, method: str, name: str) -> bool:
        step = next((s for m, n, s in _STEPS if method in m.split() and re.fullmatch(n, name)), "")
        if step == "fragment" and self._seeding:
            step = "seed"
        if step == "lease":
            self._own_epoch = name[-6:]
        if step == "release" and name[-6:] != self._own_epoch:
            step = "removal of old lease"
        with self._lock:
            if step != self._point.step:
                return False
            self._met += 1
            return self._met == self._point.occurrence

    def _then_strike(self, check: Callable[[], None]) -> Callable[[], None]:
        def checked() -> None:
            check()
            self.strike()

        return checked

    def _strike_first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*args: Any, **kwargs: Any) -> Any:
            self.strike()
            return original(*args, **kwargs)

        return struck

    @contextlib.contextmanager
    def _inside(self, store: Store, method: str, name: str) -> Iterator[None]:
        """Strikes in the middle of what is done meanwhile, by this thread or with that file."""
        if not store.is_local:
            _cut_request(name, method, self.strike)
            yield
            return
        here = threading.get_ident()

        def only_here(original: Callable[..., Any], middle: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def patched(*args: Any, **kwargs: Any) -> Any:
                return (middle if threading.get_ident() == here else original)(*args, **kwargs)

            return patched

        unlink = os.unlink

        def one_less(*args: Any, **kwargs: Any) -> None:
            unlink(*args, **kwargs)
            self.strike()

        def half_written(path: Any, data: bytes) -> None:
            with open(path, "xb") as f:
                f.write(data[: len(data) // 2])
                f.flush()
                self.strike()
                f.write(data[len(data) // 2 :])

        def half_copied(source: Any, to: Any, *rest: Any) -> None:
            data = source.read()
            to.write(data[: len(data) // 2])
            to.flush()
            self.strike()
            to.write(data[len(data) // 2 :])

        if method == "remove":
            os.unlink = only_here(os.unlink, one_less)
        elif self._point.torn:
            disk.write = only_here(disk.write, half_written)
            shutil.copyfileobj = only_here(shutil.copyfileobj, half_copied)
        else:
            os.link = only_here(os.link, self._strike_first(os.link))
            if method != "replace":  # that one is struck behind its check
                os.replace = only_here(os.replace, self._strike_first(os.replace))
        yield


def _cut_request(name: str, method: str, strike: Callable[[], None]) -> None:
    """Strike when half of the body of the request for that file is sent: its first such request."""
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
            is_it = b"delete" in line if method == "remove" else line.startswith(b"PUT ") and wanted in line
            if done or not end or not is_it:
                return write(self, data)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            size = int(length[1]) if length else 0
            if not size:
                write(self, data[: len(data) // 2])
                done.append(True)
                strike()
                return write(self, data[len(data) // 2 :])
            bodies[id(self)] = (size, 0)
            start = len(head) + len(end)
        size, sent = bodies[id(self)]
        if sent + len(data) - start < size // 2 or method == "remove":
            bodies[id(self)] = (size, sent + len(data) - start)
            write(self, data)
            if method == "remove" and sent + len(data) - start >= size:
                strike()  # the request is out, nobody reads the answer
            return None
        write(self, data[: start + size // 2 - sent])
        del bodies[id(self)]
        done.append(True)
        strike()
        return write(self, data[start + size // 2 - sent :])

    transport.write = cut
    transport.writelines = lambda self, chunks: cut(self, b"".join(bytes(c) for c in chunks))
