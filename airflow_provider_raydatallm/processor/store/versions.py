"""The versions of a slice, and the folders that hold them.

`commits/commit-000003.json` is created once and never replaced or removed. The highest one that is not void
is the slice's content; what the table's folder shows follows it (`publish.reconcile`). A void commit uses a
number up, so that no run can publish under it. Imports only fsspec, for the Airflow side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths, slice_paths
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store

#: Of the commits' format: a higher one was written by a newer provider.
FORMAT = 3
#: Folders and files of a slice's metadata.
COMMITS, PLANS, CHECKPOINT, PROGRESS = "commits", "plans", "checkpoint", "progress.json"
#: Folders beside the table: files of versions that are not shown yet, and of older versions.
STAGED, KEPT = "staged", "kept"
#: In a table's folder, and with what is staged for it.
SUCCESS = "_SUCCESS"

_COMMIT = re.compile(r"commit-(\d{6,})\.json")
_COMPLETE = re.compile(r"complete-(\d{6,}-[0-9a-f]{8})")
_STAGED_FOLDER = re.compile(r"(\d{6,})-[0-9a-f]{8}")
_FILE_NAME = re.compile(r"(?:part|quarantine)-(\d{6,})-\d{5,}-of-\d{5,}-[0-9a-f]{8}\.parquet")
_PLAN_NAME = re.compile(r"plans/plan-(\d{6,})-[0-9a-f]{8}\.json")


class NumberTakenError(SliceError):
    """The number of a version that is being built is used up: what to do is decided again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="transient")


@dataclass(frozen=True)
class SliceFolders:
    """The stores of one slice."""

    table: Store
    metadata: Store
    staging: Store
    quarantine: Store

    @classmethod
    def open(cls, paths: SlicePaths) -> SliceFolders:
        return cls(Store(paths.table), Store(paths.metadata), Store(paths.staging), Store(paths.quarantine))

    def of(self, version: Version) -> SliceFolders:
        """The folders that show a version: it may have another quarantine than the job has now.

        :raises SliceError: when it is another table's, whose metadata lies in the same folder.
        """
        table, quarantine = version.body.get("table"), version.body.get("quarantine_folder")
        if table is not None and not self.table.is_folder(table):
            raise SliceError(
                f"{self.metadata.url} holds the metadata of {table}, and this is {self.table.url}: give "
                "each table a publish.metadata_path of its own",
                kind="input",
            )
        quarantine = quarantine or slice_paths(self.table.url).quarantine
        return self if self.quarantine.is_folder(quarantine) else replace(self, quarantine=Store(quarantine))


@dataclass(frozen=True)
class PublishedFile:
    """A Parquet file of a version. `input`: the input file whose rows it holds, with `file_per_input`."""

    name: str
    rows: int
    bytes: int
    sha256: str
    input: str | None = None

    @property
    def plain_name(self) -> str:
        """Its name outside of the table: readers of a folder above read whatever ends in .parquet."""
        return self.name.removesuffix(".parquet")


@dataclass(frozen=True)
class Version:
    """A committed version of a slice: the body of its commit."""

    number: int
    body: dict[str, Any]

    @cached_property
    def files(self) -> tuple[PublishedFile, ...]:
        return tuple(PublishedFile(**f) for f in self.body["files"])

    @cached_property
    def quarantine(self) -> tuple[PublishedFile, ...]:
        return tuple(PublishedFile(**f) for f in self.body["quarantine"])

    @property
    def all_files(self) -> tuple[PublishedFile, ...]:
        return self.files + self.quarantine

    @property
    def staged(self) -> str:
        """Name of its folder among the staged files: no other commit has it."""
        return str(self.body["staged"])

    @property
    def marker(self) -> str:
        """The staged source of `_SUCCESS`."""
        return f"{STAGED}/{self.staged}/{SUCCESS}"

    def staged_name(self, file: PublishedFile) -> str:
        return f"{STAGED}/{self.staged}/{file.plain_name}"

    def kept_name(self, file: PublishedFile) -> str:
        return f"{KEPT}/{self.number:06}/{file.plain_name}"

    @property
    def keep(self) -> int:
        """How many versions before this one are kept."""
        return int(self.body["keep"])

    @property
    def plan(self) -> str:
        """File of its plan, for a version that takes over its rows."""
        return str(self.body["plan"])

    @property
    def question(self) -> str:
        """The checkpoint that its rows were in."""
        return str(self.body["question"])

    @property
    def epoch(self) -> int:
        return int(self.body["epoch"])

    @property
    def fingerprint(self) -> str:
        return str(self.body["fingerprint"])

    @property
    def answers(self) -> str:
        """The answers' own fingerprint, whatever is published beside them."""
        return str(self.body["answers"])

    @property
    def input_hash(self) -> str:
        return str(self.body["input"]["hash"])

    def to_report(self, outcome: str) -> Report:
        """:raises SliceError: when a newer provider wrote it, with more than this one knows."""
        try:
            return Report.model_validate({**self.body["report"], "outcome": outcome})
        except ValidationError as e:
            raise SliceError(
                f"version {self.number} was published by version {self.body.get('provider_version')} of the "
                "provider, whose reports this one cannot read: upgrade the provider here",
                kind="input",
            ) from e


@dataclass(frozen=True)
class Commits:
    """The commits that exist, by one listing."""

    store: Store
    numbers: tuple[int, ...]
    #: Staged folders of the versions of which a reconcile was completed.
    complete: frozenset[str]

    @classmethod
    def list(cls, store: Store) -> Commits:
        names = store.names(COMMITS)
        numbers = sorted(int(m[1]) for n in names if (m := _COMMIT.fullmatch(n)))
        complete = frozenset(m[1] for n in names if (m := _COMPLETE.fullmatch(n)))
        return cls(store, tuple(numbers), complete)

    @property
    def highest(self) -> int:
        """The highest number that is used up; 0 for none."""
        return self.numbers[-1] if self.numbers else 0

    def versions(self, *, below: int | None = None) -> Iterator[Version]:
        """Yields versions, the newest first, reading one commit each.

        :param below: only older ones than this, without those whose commit nobody can read.
        :raises SliceError: when the newest commit is damaged, or of a newer provider.
        """
        for number in reversed(self.numbers):
            if below is not None and number >= below:
                continue
            try:
                version = read_version(self.store, number)
            except SliceError:
                if below is None:
                    raise
                continue
            if version is not None:
                yield version

    def newest(self) -> Version | None:
        """Returns the version that is the slice's content, or None. See `versions`."""
        return next(self.versions(), None)

    def newest_number(self) -> int:
        """The newest version's number, also where its commit cannot be read; 0 for none."""
        try:
            version = self.newest()
        except SliceError:
            return self.highest
        return version.number if version is not None else 0


def newest_version(store: Store) -> Version | None:
    """Returns the version that is the slice's content, or None. See `Commits.newest`."""
    return Commits.list(store).newest()


def next_number(folders: SliceFolders, base: int) -> int:
    """Returns the number of a version that follows the version `base` (0 for none).

    :raises NumberTakenError: when `base` is not the newest version any more.
    """
    shown = _highest_shown_number(folders)
    # One listing tells both: what is committed under this number follows `base`, with no version between.
    commits = Commits.list(folders.metadata)
    if (newest := commits.newest_number()) != base:
        raise NumberTakenError(f"version {newest} of {folders.table.url} was published meanwhile")
    return max(commits.highest, shown) + 1


def read_version(store: Store, number: int) -> Version | None:
    """Returns a version; None when its number is void, or has no commit.

    :raises SliceError: when the commit is damaged, or of a newer provider.
    """
    try:
        body = store.read_document(commit_name(number))
        if body is None or body.get("void"):
            return None
        if body["format"] > FORMAT:
            raise SliceError(
                f"{store.path(commit_name(number))} was written by version {body.get('provider_version')} "
                "of the provider, which is newer than this one: upgrade the provider here",
                kind="input",
            )
        version = Version(number, body)
        _check(store, version)
        return version
    except CorruptFileError as e:
        raise SliceError(
            f"{e}: the published version is unknown. Restore that file, or set rerun.force=True to answer "
            "the slice again",
            kind="input",
        ) from e


def create_commit(store: Store, number: int, body: dict[str, Any]) -> bool:
    """Creates a commit. Returns False when the number is taken."""
    return store.create_document(commit_name(number), {"format": FORMAT, **body})


def void(store: Store, number: int, reason: str) -> bool:
    """Uses a number up, so that no run publishes under it. Returns False when it is taken."""
    return create_commit(store, number, {"void": True, "reason": reason})


def epoch(store: Store) -> int:
    """The lease epoch of the newest version; 0 when there is none that can be read."""
    try:
        version = newest_version(store)
    except SliceError:
        return 0
    return version.epoch if version is not None else 0


def commit_name(number: int) -> str:
    return f"{COMMITS}/commit-{number:06}.json"


def complete_name(staged: str) -> str:
    """File that says that the table showed the version with this staged folder, and that no copy of an older
    one can still arrive."""
    return f"{COMMITS}/complete-{staged}"


def _highest_shown_number(folders: SliceFolders) -> int:
    """The highest number of a version that was committed for sure, even if its commit is lost now."""
    shown = (number_of_file(name) or 0 for name in (*folders.table.names(), *folders.quarantine.names()))
    complete = (number_of_staged(name) or 0 for name in Commits.list(folders.metadata).complete)
    kept = (int(name) for name in folders.staging.names(KEPT) if name.isdecimal())
    return max((*shown, *complete, *kept), default=0)


def file_name(kind: Literal["part", "quarantine"], number: int, index: int, count: int, nonce: str) -> str:
    return f"{kind}-{number:06}-{index:05}-of-{count:05}-{nonce}.parquet"


def number_of_file(name: str) -> int | None:
    """The version of a file in a table's folder; None for files of others."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def number_of_staged(name: str) -> int | None:
    """The version of a path below the folder of staged files; None for files of others."""
    match = _STAGED_FOLDER.fullmatch(name.partition("/")[0])
    return int(match[1]) if match else None


def number_of_plan(name: str) -> int | None:
    match = _PLAN_NAME.fullmatch(name)
    return int(match[1]) if match else None


def _check(store: Store, version: Version) -> None:
    """Refuses names that no provider writes: they lead to where the commit's reader opens and copies files.

    :raises CorruptFileError: naming the commit.
    """
    body = version.body
    try:
        names = [f.name for f in version.all_files]
        valid = (
            body["number"] == version.number
            and number_of_staged(body["staged"]) == version.number
            and "/" not in body["staged"]
            and number_of_plan(body["plan"]) is not None
            and all(number_of_file(name) == version.number for name in names)
            and len(set(names)) == len(names)
            # Another folder for the same slice's rows, at most.
            and (body.get("quarantine_folder") or store.url).rpartition("/")[2]
            == store.url.rpartition("/")[2]
            and isinstance(body["keep"], int)
        )
    except (KeyError, TypeError) as e:
        raise CorruptFileError(store, commit_name(version.number), f"{type(e).__name__}: {e}") from e
    if not valid:
        raise CorruptFileError(store, commit_name(version.number), "it names files that no version has")
