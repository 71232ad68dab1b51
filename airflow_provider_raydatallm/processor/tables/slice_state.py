"""What is published of each slice of a table, and what its last run does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.errors import SliceError, problem_of
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.processor.publish.published import hidden_metadata
from airflow_provider_raydatallm.processor.publish.staged_commands import staged_listing
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.run_record import read_progress
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

_THREADS = 16
#: A run that is at work writes its progress every ten seconds; clocks of machines may differ.
_SILENCE_S = 60.0
_OF_ANOTHER_SHAPE = (ValueError, LookupError, TypeError, AttributeError)

Run = Literal["running", "stopped", "failed"]


@dataclass(frozen=True)
class SliceState:
    """
    :param version: the newest published one; None: nothing is published.
    :param run: what a run does that has published nothing yet; None: there is none.
    :param progress: of that run, as it wrote it last.
    :param obstacle: why nothing can be written on the disk that it is on.
    :param staged: entries of `staged_listing`: versions that wait for their commit.
    :param failure: why the published version, or whether there is one, cannot be read.
    """

    key: str
    version: int | None = None
    published_at: str | None = None
    report: Report | None = None
    run: Run | None = None
    progress: dict[str, Any] | None = None
    staged: Sequence[dict[str, Any]] = ()
    failure: Failure | None = None
    obstacle: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is there of the slice."""
        return bool(self.report or self.progress or self.staged or self.failure)

    @property
    def run_failure(self) -> Failure | None:
        """Why a run ended without publishing; None where it did not."""
        if self.progress is None or self.run not in ("failed", "stopped"):
            return None
        if self.run == "failed":
            return Failure.parse(self.progress.get("failure"))
        sentence = f"the run wrote its progress last at {self.progress['when']}, and not why it ended"
        return Failure(
            "stopped",
            sentence if self.obstacle is None else f"{sentence}: {self.obstacle}",
            advice=(
                "See the task's log: it was killed, or its storage was full or away. Or this machine's clock "
                "is wrong",
            ),
        )

    @property
    def error(self) -> str | None:
        """In one line."""
        return None if self.failure is None else self.failure.text

    @property
    def is_published(self) -> bool:
        return self.version is not None


def read_states(slices: Iterable[tuple[str, SliceFolders]]) -> Iterator[SliceState]:
    """Yields the slices in their order. Each takes two listings and two small files; several are read at a
    time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(lambda one: read_state(*one), slices)


def read_state(key: str, folders: SliceFolders) -> SliceState:
    """Reads one slice. What cannot be read of it is said, and stops no other slice."""
    seen, version = SliceState(key), None
    try:
        progress, run = read_run(folders)
        obstacle = _why_not_writable(folders) if run == "stopped" else None
        seen = SliceState(key, run=run, progress=progress, staged=staged_listing(folders), obstacle=obstacle)
        version = versions.newest_version(folders.metadata)
        if version is None:
            hidden = None if progress or seen.staged else hidden_metadata(folders)
            return seen if hidden is None else replace(seen, failure=Failure("input", hidden))
        folders.of(version)  # which refuses another table's metadata
        report = version.to_report(folders.table.url)
    except (SliceError, OSError, *_OF_ANOTHER_SHAPE) as e:
        number = None if version is None else version.number
        return replace(seen, version=number, failure=problem_of(e))
    published_at = version.body.get("published_at")
    return replace(seen, version=version.number, published_at=published_at, report=report)


def _why_not_writable(folders: SliceFolders) -> str | None:
    store = folders.metadata
    return disk.why_not_writable(store.root) if store.is_local else None


def read_run(folders: SliceFolders) -> tuple[dict[str, Any] | None, Run | None]:
    """Returns the progress that a run wrote last, and what it does. Returns nothing for a file of another
    shape, as another version of the provider may write it: it hides no published version."""
    try:
        progress = read_progress(folders)
        if progress is None:
            return None, None
        progress_text(progress)
        return progress, _run_of(progress)
    except _OF_ANOTHER_SHAPE:
        return None, None


def _run_of(progress: dict[str, Any]) -> Run:
    since = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(progress["when"])
    if progress.get("step") == "failed":
        return "failed"
    return "running" if since.total_seconds() < _SILENCE_S else "stopped"
