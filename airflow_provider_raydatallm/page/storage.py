"""Reads a slice's folder for the page, in bounded time: storage may be slow, away, or closed to this server.

A few threads read at a time, so that a dead store cannot hold the API server's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from functools import cache
from threading import BoundedSemaphore
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.page.answers import Sample, Stored, Version
from airflow_provider_raydatallm.page.index import RunOfSlice

T = TypeVar("T")

log = logging.getLogger(__name__)

#: How long a page waits for storage, and how many reads go on at a time.
_READ_SECONDS = 5.0
_READERS = 4
_SAMPLE_ROWS = 20
_OTHER_VERSION = (
    "Another version of the provider wrote this slice's report: to see it, upgrade the provider in the API "
    "server."
)
_free = BoundedSemaphore(_READERS)


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

    return _bounded(read, lambda note: Stored(note=note))


def read_sample(run: RunOfSlice, task: dict[str, str], kind: Literal["published", "quarantined"]) -> Sample:
    """Returns the first rows of the newest version, or a note that says why not."""

    def read() -> Sample:
        columns, rows = _view(run, task).sample(kind, _SAMPLE_ROWS)
        return Sample(columns=columns, rows=rows)

    return _bounded(read, lambda note: Sample(note=note))


def _view(run: RunOfSlice, task: dict[str, str]) -> Any:
    from airflow_provider_raydatallm.processor.tables.slice_view import SliceView

    return SliceView(SlicePaths(**run.entry.paths), task)


def _version(version: Any) -> Version:
    report = version.body["report"]
    return Version(
        number=version.number,
        counts=report["counts"],
        labels=report.get("labels"),
        fingerprint=version.fingerprint,
        model=version.body.get("model_source"),
    )


def _bounded(read: Callable[[], T], or_note: Callable[[str], T]) -> T:
    if not _free.acquire(blocking=False):
        return or_note("Storage is slow: other pages are still waiting for it. Reload in a moment.")
    future = _readers().submit(read)
    future.add_done_callback(_release)
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


def _release(_: Future[Any]) -> None:
    _free.release()


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_READERS, thread_name_prefix="ray-llm-page")
