"""Publishes a staged version, or discards it. Nobody who staged it needs to be alive, and several may try at
once. Neither Arrow nor Ray is imported, so that the Airflow side can commit, too.

* A commit takes the number that the version was staged for, or where that was used up without a version, the
  next one, with copies of the staged files. Either way it follows the version that it was built on.
* Who commits looks at the document after the number was chosen. Who discards removes the document, then uses
  the open number up, then removes the files. So one of both fails, whoever sleeps in between.
* A commit names its document, so that nobody commits it twice, or removes what it published.

`tests/model` walks through the interleavings of these steps.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from airflow_provider_raydatallm import __version__
from airflow_provider_raydatallm.contract.result.errors import StorageError
from airflow_provider_raydatallm.processor.publish.reconcile import reconcile
from airflow_provider_raydatallm.processor.publish.version_numbers import next_number
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.column_agreement import (
    ColumnAgreement,
    ColumnsChangedError,
    table_metadata,
)
from airflow_provider_raydatallm.processor.store.file_names import (
    PLAN_BYTES,
    STAGED,
    plan_of_staged,
    renumbered_file,
)
from airflow_provider_raydatallm.processor.store.forced import set_earlier_answers_aside
from airflow_provider_raydatallm.processor.store.lease import Lease, newest_epoch
from airflow_provider_raydatallm.processor.store.rejections import is_rejected
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    STAGE_ANEW,
    StagedVersion,
    StagedVersionError,
    document_name,
    read_staged,
    remove_document,
)
from airflow_provider_raydatallm.processor.store.versions import (
    Commits,
    NumberTakenError,
    PublishedFile,
    Version,
)


class PublishedByOthersError(NumberTakenError):
    """Somebody else published the staged version meanwhile. The table shows it, or a newer one."""

    def __init__(self, message: str, version: Version) -> None:
        super().__init__(message)
        self.version = version


class SupersededError(StagedVersionError):
    """Another version was published since this one was staged."""


class UnusableError(StagedVersionError):
    """A staged version that cannot be published as it is. A run stages it anew from its finished rows."""


class OtherColumnsError(UnusableError):
    """Another slice of the table was published with other columns since this version was staged."""


def commit(
    folders: SliceFolders,
    slice_key: str,
    staged: StagedVersion,
    known: ColumnAgreement | None = None,
    lease: Lease | None = None,
    *,
    accepts_change: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Version:
    """Publishes a staged version and has the table show it.

    :param slice_key: of the slice, and `accepts_change`: whether the table's columns may change with it. A
        document that others can write decides neither.
    :param lease: of the run that publishes it; None for a command.
    :param known: the table's columns, as a process knows them that has just staged this version.
    :param check: raises what ends it, at the last moment before it counts.
    :raises PublishedByOthersError: when somebody else published it.
    :raises SupersededError: when another version was published since it was staged.
    :raises UnusableError: when its files or its document are gone, its document says what no run did, or the
        table has other columns now.
    """
    if known is None:
        _check_not_rejected(folders, staged)
        _check_slice_of(slice_key, staged)
        _check_epoch(folders, staged)
        check_files(folders, staged)
    _confirm_columns(folders, slice_key, staged, known, accepts_change=accepts_change)
    version = _put(folders, staged, staged.number, lease, check) if known is not None else None
    others = None
    while version is None and others is None:
        decided = _decide(folders, staged)
        if isinstance(decided, int):
            version = _put(folders, staged, decided, lease, check)
        else:
            others = decided
    reconcile(folders)
    if staged.is_held:  # those of runs go with whatever is published
        remove_document(folders.metadata, staged.name)
    if version is None:
        assert others is not None
        raise PublishedByOthersError(
            f"{staged.name} was published already, as version {others.number} of {folders.table.url}", others
        )
    return version


def check_waits(
    folders: SliceFolders, slice_key: str, staged: StagedVersion, *, accepts_change: bool
) -> None:
    """
    :param slice_key, accepts_change: see `commit`.
    :raises StagedVersionError: when it cannot be published, or is not held for somebody, or its number is
        used up: then it is not known whether its files stay.
    """
    if not staged.is_held:
        raise UnusableError(f"{staged.name} of {folders.table.url} is not held: it is staged anew")
    _check_slice_of(slice_key, staged)
    _check_not_rejected(folders, staged)
    _check_epoch(folders, staged)
    check_files(folders, staged)
    _confirm_columns(folders, slice_key, staged, None, accepts_change=accepts_change, is_published=False)
    if _decide(folders, staged) != staged.number:
        raise UnusableError(
            f"the number of {staged.name} of {folders.table.url} is used up: it is staged anew"
        )


def discard(folders: SliceFolders, staged: StagedVersion) -> None:
    """Discards a staged version: nobody publishes it from here on. Its finished rows stay, so that a run of
    the same question stages it anew and pays for none.

    :raises StagedVersionError: when it was published.
    """
    metadata = folders.metadata
    metadata.remove_file(document_name(staged.name))
    is_void = False
    while not is_void:
        try:
            decided = _decide(folders, staged)
        except SupersededError:
            break
        if not isinstance(decided, int):
            raise StagedVersionError(
                f"{staged.name} was published, as version {decided.number} of {folders.table.url}: nothing "
                "is discarded",
                advice="Restore the version before it, if that is kept",
            )
        is_void = versions.void(metadata, decided, f"{staged.name} was discarded")
    remove_staged_files(folders, staged.name)
    metadata.remove_file(staged.version.plan)
    remove_document(metadata, staged.name)


def remove_staged_files(folders: SliceFolders, name: str) -> None:
    folder = f"{STAGED}/{name}"
    for file in folders.staging.names(folder):
        folders.staging.remove_file(f"{folder}/{file}")
    folders.staging.remove_empty(folder)


def put_commit(
    folders: SliceFolders,
    number: int,
    base: Version | None,
    staged: str,
    body: Mapping[str, object],
    *,
    keep: int,
) -> None:
    """Commits a version whose files are staged.

    :param staged: the version's folder among the staged files.
    :param keep: how many versions before it stay readable.
    :raises NumberTakenError: when the number is taken.
    """
    open_sink(folders).prepare(staged)
    decided = {
        **body,
        "number": number,
        "base": base.number if base is not None else None,
        "staged": staged,
        "keep": keep,
    }
    if _create(folders, number, decided) is None:
        raise NumberTakenError(f"number {number} of {folders.table.url} is taken")


def find_published(folders: SliceFolders, name: str, follows: int = 0) -> Version | None:
    """The version that a staged one became, on top of `follows`; None when nobody published it."""
    for version in Commits.list(folders.metadata).versions(below=sys.maxsize):
        if version.number <= follows:
            break
        if version.body.get("staged_version") == name:
            return version
    return None


def _create(folders: SliceFolders, number: int, body: Mapping[str, object]) -> Version | None:
    """Creates a commit; None when the number is taken."""
    known_now = {
        "published_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "provider_version": __version__,
    }
    decided = {**body, **known_now}
    return Version(number, decided) if versions.create_commit(folders.metadata, number, decided) else None


def _put(
    folders: SliceFolders, staged: StagedVersion, number: int, lease: Lease | None, check: Callable[[], None]
) -> Version | None:
    """Commits it under a number. Returns None when that is taken.

    :param lease, check: see `commit`.
    :raises UnusableError: when its files or its document are gone, or somebody rejected its answers.
    """
    try:
        body = staged.version.body if number == staged.number else _copy(folders, staged, number)
    except StorageError:
        if Commits.list(folders.metadata).highest < number:
            raise
        return None  # who shows that version removes the copies while they are made
    # After the number was chosen: who discards it uses the open number up after that.
    if number != staged.number and read_staged(folders, staged.name) is None:
        raise UnusableError(f"{staged.name} of {folders.table.url} was discarded meanwhile")
    _check_not_rejected(folders, staged)
    own: dict[str, object] = {"staged_version": staged.name}
    if lease is not None:  # the next run's epoch is higher, and what this one leaves is known by its name
        own |= {"epoch": max(lease.epoch, staged.version.epoch), "run": lease.name}
    check()
    try:
        took_time = set_earlier_answers_aside(folders.metadata, Version(number, body))
    except FileNotFoundError as e:
        if Commits.list(folders.metadata).highest >= number:
            return None
        raise _gone(folders, f"{body['plan']} is gone") from e
    if took_time:
        check()
    return _create(folders, number, {**body, **own})


def _decide(folders: SliceFolders, staged: StagedVersion) -> Version | int:
    """Returns the version that a staged one became, or the number under which it can be published.

    :raises SupersededError: when it can follow no version any more.
    """
    try:
        # One listing tells that no version follows the one that it was built on, itself included.
        return next_number(folders, staged.follows)
    except NumberTakenError as e:
        # Only now: one that is published before this look is found, whenever that was.
        if (version := find_published(folders, staged.name, staged.follows)) is not None:
            return version
        on = f"version {staged.follows}" if staged.follows else "an empty slice"
        raise SupersededError(
            f"{staged.name} of {folders.table.url} was staged on top of {on}, and another version was "
            "published since: it cannot be published any more",
            advice="Discard it; to publish its question, run the slice again",
        ) from e


def _check_slice_of(slice_key: str, staged: StagedVersion) -> None:
    """:raises UnusableError: when it is another slice's."""
    own = staged.version.body.get("slice_key")
    if own != slice_key:
        raise UnusableError(f"{staged.name} of {staged.table} is of slice {own!r}, and this is {slice_key!r}")


def _check_not_rejected(folders: SliceFolders, staged: StagedVersion) -> None:
    """:raises UnusableError: when somebody rejected its answers, and did not come to discard it."""
    if is_rejected(folders.metadata, staged):
        raise UnusableError(
            f"{staged.name} of {folders.table.url} was rejected: its answers are not published as they are",
            advice=STAGE_ANEW,
        )


def _check_epoch(folders: SliceFolders, staged: StagedVersion) -> None:
    """:raises UnusableError: when no run had its epoch: the next one's would be above it, and there may be
    none."""
    metadata = folders.metadata
    # In this order: a run that publishes removes its lease after that.
    newest = max(newest_epoch(metadata), versions.epoch(metadata))
    if staged.version.epoch > newest:
        raise UnusableError(
            f"{staged.name} of {folders.table.url} says that it is of epoch {staged.version.epoch}, and the "
            f"newest that a run had is {newest}: it cannot be published, and nothing is",
            advice=STAGE_ANEW,
        )


def check_files(folders: SliceFolders, staged: StagedVersion) -> None:
    """
    :raises UnusableError: when its plan or a staged file is gone, or a file has other content.
    :raises SupersededError: when that is since another version was published.
    """
    what = _missing(folders, staged)
    if what is not None and isinstance(_decide(folders, staged), int):
        raise _gone(folders, what)


def _missing(folders: SliceFolders, staged: StagedVersion) -> str | None:
    version = staged.version
    sizes = {f.name: f.size for f in folders.staging.files(f"{STAGED}/{staged.name}")}
    for file in version.all_files:
        size = sizes.get(file.plain_name)
        if size != file.bytes:
            found = "is gone" if size is None else f"has {size:,} bytes and was staged with {file.bytes:,}"
            return f"{folders.staging.path(version.staged_name(file))} {found}"
        try:
            content = folders.staging.sha256(version.staged_name(file))
        except CorruptFileError:  # a link, say
            content = None
        if content != file.sha256:
            return f"{folders.staging.path(version.staged_name(file))} has other content than was staged"
    try:
        is_there = folders.metadata.read_document(version.plan, PLAN_BYTES) is not None
    except CorruptFileError as e:
        return e.failure.sentence
    return None if is_there else f"{folders.metadata.path(version.plan)} is gone"


def _gone(folders: SliceFolders, what: str) -> UnusableError:
    return UnusableError(
        f"{what}: the staged version of {folders.table.url} cannot be published, and nothing is",
        advice=STAGE_ANEW,
    )


def _copy(folders: SliceFolders, staged: StagedVersion, number: int) -> dict[str, Any]:
    """Stages copies of its files for another number. Returns the body of the commit that names them.

    :raises UnusableError: when a file is gone.
    """
    version = staged.version
    name = f"{number:06}-{uuid.uuid4().hex[:8]}"
    plan = plan_of_staged(name)

    def copies(files: tuple[PublishedFile, ...]) -> list[dict[str, object]]:
        result = []
        for file in files:
            copy = replace(file, name=renumbered_file(file.name, number, uuid.uuid4().hex[:8]))
            target = f"{STAGED}/{name}/{copy.plain_name}"
            folders.staging.place(folders.staging, version.staged_name(file), target)
            result.append(asdict(copy))
        return result

    try:
        body = {
            **version.body,
            "number": number,
            "staged": name,
            "plan": plan,
            "files": copies(version.files),
            "quarantine": copies(version.quarantine),
            "report": {**version.body["report"], "published_version": number},
        }
        folders.metadata.place(folders.metadata, version.plan, plan)
    except FileNotFoundError as e:
        raise _gone(folders, str(e)) from e
    open_sink(folders).prepare(name)
    return body


def _confirm_columns(
    folders: SliceFolders,
    slice_key: str,
    staged: StagedVersion,
    known: ColumnAgreement | None,
    *,
    accepts_change: bool,
    is_published: bool = True,
) -> None:
    """:raises OtherColumnsError: when another slice published other columns since this version was staged."""
    try:
        ColumnAgreement.read(table_metadata(folders), known).agree(
            slice_key, staged.columns, accepts_change=accepts_change, is_published=is_published
        )
    except ColumnsChangedError as e:
        raise OtherColumnsError(
            f"another slice of the table was published with other columns meanwhile: {e.failure.sentence}",
            advice=("Run the slice again", *e.failure.advice),
        ) from e
