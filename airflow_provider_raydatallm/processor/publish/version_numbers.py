"""Which number a version gets. It is decided once, together with the version that it follows."""

from __future__ import annotations

from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.store.file_names import following, number_of_staged
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError, complete_name


def next_number(folders: SliceFolders, base: int) -> int:
    """Returns the number of a version that follows the version `base` (0 for none).

    :raises NumberTakenError: when `base` is not the newest version any more.
    """
    shown, path = _highest_shown(folders)
    # One listing tells both: what is committed under this number follows `base`, with no version between.
    commits = Commits.list(folders.metadata)
    if (newest := commits.newest_number()) != base:
        raise NumberTakenError(f"version {newest} of {folders.table.url} was published meanwhile")
    if shown > commits.highest:
        return following(shown, path)
    return commits.next_number


def _highest_shown(folders: SliceFolders) -> tuple[int, str]:
    """The highest number of a version that was committed for sure, even if its commit is lost now, and the
    path that says so."""
    sink, metadata = open_sink(folders), folders.metadata
    shown = sink.shown_numbers()
    complete = [
        (number_of_staged(name) or 0, metadata.path(complete_name(name)))
        for name in Commits.list(metadata).complete
    ]
    return max((*shown, *complete, *sink.kept()), default=(0, ""))
