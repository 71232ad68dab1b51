"""The documents that say to which table a folder belongs:

    <table>.ray_llm/table.json        this is the metadata of the table beside it
    <quarantine>.ray_llm/table.json   beside a quarantine that was put elsewhere: whose it is
    <metadata>/table.json             in metadata that were put elsewhere: whose they are
    <table>.ray_llm/_tasks/....json   the Airflow tasks that publish the table, one each

A table with everything beside it may be moved or copied with its metadata: only folders elsewhere name their
table by its address. Where each slice is a table, its document lies in the slice's own metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_raydatallm.contract.addresses import ancestors
from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.slice_paths import MARK, METADATA, QUARANTINE, TRIAL
from airflow_provider_raydatallm.processor.storage.filesystem import resolve
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store

#: Of the tasks' documents; slices' folders never begin so.
_TASKS = "_tasks"
#: Of a document.
_MAX_BYTES = 1 << 16
#: What a folder is to its table.
IS_TABLE, IS_METADATA, IS_QUARANTINE, IS_TRIALS = "table", "metadata", "quarantine", "trials"


@dataclass(frozen=True)
class Mark:
    """The document in `folder`.

    :ivar kind: what it speaks of.
    :ivar table: address of the table; None for the one that the document lies beside.
    """

    folder: str
    kind: str
    table: str | None = None

    @property
    def path(self) -> str:
        return f"{self.folder}/{MARK}"

    @classmethod
    def read(cls, folder: str) -> Mark | None:
        """Returns None where there is no such document, or this identity may not see it."""
        try:
            match Store(folder).read_document(MARK, _MAX_BYTES):
                case {"kind": str(kind), "table": None | str() as table}:
                    return cls(folder, kind, table)
        except CorruptFileError:  # a file of that name that others wrote
            pass
        except StorageError as e:
            if not isinstance(e.__cause__, PermissionError):
                raise
        return None

    def write(self) -> None:
        """Creates the document, unless it is there.

        :raises SliceError: when another table's is.
        """
        if Store(self.folder).create_document(MARK, {"kind": self.kind, "table": self.table}):
            return
        found = Mark.read(self.folder)
        if found != self:
            whose = "is damaged" if found is None else f"names the table {found.table or 'beside it'}"
            raise SliceError(
                f"{self.path} {whose}",
                kind="input",
                advice="Give each table folders of its own, or remove that file if no other table uses them",
            )


class Owner(NamedTuple):
    """Whose a folder is: its table, what it is to it, and the document that says so."""

    table: str
    kind: str
    said_by: str

    def __str__(self) -> str:
        return f"the table {self.table}" if self.kind == IS_TABLE else f"the {self.kind} of {self.table}"


def find_owner(folder: str) -> Owner | None:
    """Reads the documents that may speak of a folder, up to four.

    :raises SliceError: when a folder is named like one of the table beside it, and a document says otherwise:
        whoever may create names there can have written it.
    """
    above, _, name = folder.rpartition("/")
    levels = len(list(ancestors(folder)))
    said, by_name = _owner_as_said(folder, levels), _owner_by_name(folder)
    claims = {(owner.kind, resolve(owner.table)) for owner in (said, by_name) if owner is not None}
    if said is not None and by_name is not None and len(claims) > 1:
        raise SliceError(
            f"{folder} is {said}, as {said.said_by} says, and {by_name}, as {by_name.said_by} says",
            kind="input",
            advice="Remove the document that is wrong",
        )
    if (owner := said or by_name) is not None:
        return owner
    mark = Mark.read(f"{above}{METADATA}/{name}") if levels > 2 else None
    return Owner(folder, IS_TABLE, mark.path) if mark is not None and mark.kind == IS_TABLE else None


def _owner_as_said(folder: str, levels: int) -> Owner | None:
    """As a document of its own says, beside a folder or in it."""
    if levels > 1:  # nothing lies beside a bucket
        mark = Mark.read(f"{folder}{METADATA}")
        if mark is not None and mark.kind != IS_METADATA:
            return Owner(mark.table or folder, mark.kind, mark.path)
    if (mark := Mark.read(folder)) is not None:
        return Owner(mark.table or "".join(folder.rsplit(METADATA, 1)), IS_METADATA, mark.path)
    return None


def _owner_by_name(folder: str) -> Owner | None:
    """Of a folder that is named like one of the table beside it."""
    for suffix, kind in ((QUARANTINE, IS_QUARANTINE), (TRIAL, IS_TRIALS)):
        table = folder.removesuffix(suffix)
        mark = Mark.read(f"{table}{METADATA}") if table != folder else None
        if mark is not None and mark.kind == IS_TABLE:
            return Owner(table, kind, mark.path)
    return None


def names_task(staging: Store, task: Mapping[str, str]) -> bool | None:
    """Whether a table names a task as one that publishes it; None where it names none: the command line, or
    an older provider, published it.

    :param staging: the folder beside the table, which is the table's own wherever its metadata lie.
    """
    try:
        if staging.read_document(_name_of(task), _MAX_BYTES) == task:
            return True
    except CorruptFileError:
        return False
    return False if staging.names(_TASKS) else None


def add_task(staging: Store, task: Mapping[str, str]) -> None:
    """Has a table name a task."""
    staging.create_document(_name_of(task), dict(task))


def _name_of(task: Mapping[str, str]) -> str:
    text = f"{task['dag_id']}\n{task['task_id']}"
    return f"{_TASKS}/task-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def folders_above(url: str) -> Iterator[str]:
    """Yields a folder and those above it, as they can be opened; on a disk with links followed."""
    address = resolve(url)
    is_disk = address.startswith("/")
    yield from (folder for folder in ancestors(address if is_disk else url) if folder != "/")
