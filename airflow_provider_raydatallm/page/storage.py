"""Reads a slice's folder for the page, in bounded time: storage may be slow, away, or closed to this server.

Each read has a thread of its own, which the API server's do not wait for longer than a moment. Requests to an
object store end with that moment; a disk that hangs keeps its readers, so that only a few read a table at a
time, and others are read meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.page.answers import Sample, Stored, Version
from airflow_provider_raydatallm.page.index import RunOfSlice

T = TypeVar("T")

log = logging.getLogger(__name__)

#: How long a page waits for storage, and how many reads go on at a time, of one table and of all.
_READ_SECONDS = 5.0
_READERS_OF_TABLE = 4
_READERS = 32
_SAMPLE_ROWS = 20
_OTHER_VERSION = (
    "Another version of the provider wrote this slice's report: to see it, upgrade the provider in the API "
    "server."
)

#: How many reads go on, by table.
_reading: Counter[str] = Counter()
_lock = threading.Lock()


def read_stored(run: RunOfSlice, task: dict[str, str]) -> Stored:
    """Returns the slice's report, versions and progress, or a note that says why not."""

    def read() -> Stored:
        view = _view(run, task)
        progress = view.progress() if run.line.state != "published" else None
        versions = view.versions()
        number = run.line.published_version
        report = next((v.body["report"] for v in versions if v.number == number), None)
        lines = [_version(v) for v in versions]
        lacks = number is not None and report is None
        note = (
            f"Storage has no report of version {number} any more: this is what Airflow knows."
            if lacks
            else None
        )
        try:
            return Stored.model_validate(
                {"versions": lines, "progress": progress, "report": report, "note": note}
            )
        except ValidationError:
            return Stored(versions=lines, note=_OTHER_VERSION)

    return _bounded(run, read, lambda note: Stored(note=note))


def read_sample(run: RunOfSlice, task: dict[str, str], kind: Literal["published", "quarantined"]) -> Sample:
    """Returns the first rows of the newest version, or a note that says why not."""

    def read() -> Sample:
        columns, rows = _view(run, task).sample(kind, _SAMPLE_ROWS)
        return Sample(columns=columns, rows=rows)

    return _bounded(run, read, lambda note: Sample(note=note))


def _view(run: RunOfSlice, task: dict[str, str]) -> Any:
    from airflow_provider_raydatallm.processor.tables.slice_view import SliceView

    return SliceView(SlicePaths(**run.entry.paths), task, _READ_SECONDS)


def _version(version: Any) -> Version:
    report = version.body["report"]
    return Version(
        number=version.number,
        counts=report["counts"],
        labels=report.get("labels"),
        fingerprint=version.fingerprint,
        model=version.body.get("model_source"),
    )


def _bounded(run: RunOfSlice, read: Callable[[], T], or_note: Callable[[str], T]) -> T:
    table = run.entry.paths.get("table", "").rpartition("/")[0]
    with _lock:
        if _reading[table] >= _READERS_OF_TABLE or _reading.total() >= _READERS:
            return or_note("Storage is slow: other pages are still waiting for it. Reload in a moment.")
        _reading[table] += 1
    future: Future[T] = Future()

    def work() -> None:
        try:
            value = read()
        except BaseException as e:
            _release(table)
            future.set_exception(e)
        else:
            _release(table)
            future.set_result(value)

    threading.Thread(target=work, name="ray-llm-page", daemon=True).start()
    try:
        return future.result(_READ_SECONDS)
    except TimeoutError:
        return or_note(f"Storage did not answer within {_READ_SECONDS:g} s: this is what Airflow knows.")
    except FileNotFoundError:
        return or_note("Nothing is published, or not any more.")
    except PermissionError as e:
        return or_note(f"Not shown: {e}.")
    except ImportError as e:
        return or_note(f"Not shown: this API server lacks a package ({e.name}).")
    except Exception as e:
        # The message may name places that only the cluster's people should know: it goes to the server's log.
        log.warning("Could not read a slice's folder for the page: %r", e)
        return or_note(
            "This API server cannot read the slice's folder: this is what Airflow knows. Its log says why."
        )


def _release(table: str) -> None:
    with _lock:
        _reading[table] -= 1
        if not _reading[table]:
            del _reading[table]
