"""Reads a slice's folder for the page, in bounded time: storage may be slow, away, or closed to this server.

Each read has a thread of its own, which the API server's do not wait for longer than a moment. Requests to an
object store end soon after; a disk that hangs keeps its readers, so that only a few at a time read a
table, or read for a DAG, and others are read meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, TimeoutError
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.page import failures
from airflow_provider_raydatallm.page.answers import Reason, Sample, Stored, Version
from airflow_provider_raydatallm.page.index import RunOfSlice

T = TypeVar("T", bound=BaseModel)

log = logging.getLogger(__name__)

#: How long a page waits for storage, and when a reader gives up: later, so that the page tells of the wait,
#: never of how a request ended.
_READ_SECONDS, _READER_SECONDS = 5.0, 10.0
#: How many reads go on at a time: in all, for one DAG, and of one table.
_READERS, _READERS_OF_DAG, _READERS_OF_TABLE = 32, 8, 4
#: Of these, how many decode rows: each has a process of its own, with some hundred MiB at most.
_SAMPLERS, _SAMPLERS_OF_DAG = 8, 4
_SAMPLE_ROWS = 20
_OTHER_VERSION = (
    "Another version of the provider wrote this slice's report: to see it, upgrade the provider in the API "
    "server."
)

#: How many reads go on, by what is limited.
_reading: Counter[tuple[str, ...]] = Counter()
_lock = threading.Lock()


class _BusyError(Exception):
    """As many reads go on as may."""


def read_stored(run: RunOfSlice, task: dict[str, str]) -> Stored:
    """Returns the slice's report, versions and progress, or a note that says why not."""

    def read(view: Any) -> Stored:
        progress = _live(view.progress()) if run.line.state == "running" else None
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

    return _bounded(run, task, read, lambda note: Stored(note=note))


def read_reason(run: RunOfSlice, task: dict[str, str], job: str) -> Reason:
    """Returns why a run failed, as its job left it in the slice's folder; nothing where it left nothing, or
    that cannot be read.

    :param job: the Ray job that the run's last try waited for.
    """

    def read(view: Any) -> Reason:
        progress = view.progress() or {}
        is_its = progress.get("step") == "failed" and progress.get("job") == job
        return Reason(failure=failures.story_of(failures.parse(progress.get("failure"))) if is_its else None)

    return _bounded(run, task, read, lambda note: Reason())


def read_sample(run: RunOfSlice, task: dict[str, str], kind: Literal["published", "quarantined"]) -> Sample:
    """Returns the first rows of the newest version, or of the one that waits for a person, or a note that
    says why not."""
    staged = run.entry.staged_version if run.line.state == "held" else None

    def read(view: Any) -> Sample:
        columns, rows = view.sample(kind, _SAMPLE_ROWS, staged)
        return Sample(columns=columns, rows=rows)

    samplers = [(("samples",), _SAMPLERS), (("samples", task["dag_id"]), _SAMPLERS_OF_DAG)]
    return _bounded(run, task, read, lambda note: Sample(note=note), *samplers)


def _view(run: RunOfSlice, task: dict[str, str]) -> Any:
    from airflow_provider_raydatallm.processor.tables.slice_view import SliceView

    return SliceView(SlicePaths(**run.entry.paths), task, _READER_SECONDS)


def _live(progress: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns what tells how far a run is: not what a failed one left, nor a plan."""
    if progress is None or progress.get("step") == "failed" or progress.get("plan"):
        return None
    return {**progress, "phase": progress_text(progress)}


def _version(version: Any) -> Version:
    report = version.body["report"]
    return Version(
        number=version.number,
        counts=report["counts"],
        labels=report.get("labels"),
        fingerprint=version.fingerprint,
        model=version.body.get("model_source"),
    )


def _bounded(
    run: RunOfSlice,
    task: dict[str, str],
    read: Callable[[Any], T],
    or_note: Callable[[str], T],
    *limits: tuple[tuple[str, ...], int],
) -> T:
    future: Future[T] = Future()
    counted = ExitStack()
    table = run.entry.paths.get("table", "").rpartition("/")[0]

    def work() -> None:
        try:
            with counted:
                view = _view(run, task)
                with _counted((("resolved", view.resolved_table()), _READERS_OF_TABLE)):
                    value = read(view)
                value.model_dump_json()  # no answer is made of half characters, which others may write
        except BaseException as e:
            future.set_exception(e)
        else:
            future.set_result(value)

    try:
        # Where links lead, only the reader finds out: a disk that is asked may hang.
        of_all = ((("all",), _READERS), (("dag", task["dag_id"]), _READERS_OF_DAG))
        counted.enter_context(_counted(*of_all, (("table", table), _READERS_OF_TABLE), *limits))
        try:
            threading.Thread(target=work, name="ray-llm-page", daemon=True).start()
        except RuntimeError:  # the server has no thread left
            counted.close()
            raise
        return future.result(_READ_SECONDS)
    except _BusyError:
        return or_note("Storage is slow: other pages are still waiting for it. Reload in a moment.")
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


@contextmanager
def _counted(*limits: tuple[tuple[str, ...], int]) -> Iterator[None]:
    """Counts a read, as long as it goes on.

    :raises _BusyError: when there are as many as one of the limits allows.
    """
    with _lock:
        if any(_reading[key] >= most for key, most in limits):
            raise _BusyError
        _reading.update(key for key, _ in limits)
    try:
        yield
    finally:
        with _lock:
            for key, _ in limits:
                _reading[key] -= 1
                if not _reading[key]:
                    del _reading[key]
