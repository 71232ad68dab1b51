"""All kinds of sinks, and how to open the sink of a slice. Nobody else asks of which kind it is."""

from __future__ import annotations

from airflow_provider_raydatallm.processor.sinks.base import Sink
from airflow_provider_raydatallm.processor.sinks.folder import FolderSink
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders

KINDS: dict[str, type[Sink]] = {"folder": FolderSink}
#: The kind of every slice, as long as no argument chooses another one.
DEFAULT = "folder"


def open_sink(folders: SliceFolders) -> Sink:
    """Returns the sink that shows a slice. Nothing is read."""
    return KINDS[DEFAULT](folders)
