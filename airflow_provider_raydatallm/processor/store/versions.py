"""The versions of a slice, and the folders that hold them.

`commits/commit-000003.json` is created once and never replaced or removed. The highest one that is not void
is the slice's content; what the table shows follows it (`publish.reconcile`). A void commit uses a
number up, so that no run can publish under it. Imports only fsspec, for the Airflow side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.commit_body import check_body
from airflow_provider_raydatallm.processor.store.file_names import (
    COMMITS,
    STAGED,
    following,
    number_of_commit,
    staged_of_complete,
)

#: Of the commits' format: a higher one was written by a newer provider.
FORMAT = 3

#: Of a commit: some 300 bytes for each file of a slice.
_COMMIT_BYTES = 256 << 20


class NumberTakenError(SliceError):
    """The number of a version that is being built is used up: what to do is decided again."""

    def __init__(self, sentence: str, *, advice: str | Sequence[str] = ()) -> None:
        super().__init__(sentence, kind="transient", advice=advice)


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

    def staged_name(self, file: PublishedFile) -> str:
        return f"{STAGED}/{self.staged}/{file.plain_name}"

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
    def task_name(self) -> str | None:
        """The Airflow task that published it, as people name it; None where no task did."""
        task = self.body.get("task")
        return task_name(task) if isinstance(task, dict) and task.keys() >= {"dag_id", "task_id"} else None

    @property
    def input_hash(self) -> str:
        return str(self.body["input"]["hash"])

    def to_report(self, output_path: str, outcome: str | None = None) -> Report:
        """
        :param output_path: the slice's folder: a table may have moved since, and who writes the commit must
            not send the report's readers elsewhere.
        :param outcome: by default, what the commit says.
        :raises SliceError: when a newer provider wrote it, with more than this one knows.
        """
        report = self.body["report"]
        own = {"output_path": output_path, "published_version": self.number, "fingerprint": self.fingerprint}
        try:
            return Report.model_validate({**report, **own, "outcome": outcome or report["outcome"]})
        except ValidationError as e:
            raise SliceError(
                f"version {self.number} was published by version {self.body.get('provider_version')} of the "
                "provider, whose reports this one cannot read",
                kind="input",
                advice="Upgrade the provider here",
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
        numbers = sorted(number for n in names if (number := number_of_commit(n)) is not None)
        complete = frozenset(staged for n in names if (staged := staged_of_complete(n)) is not None)
        return cls(store, tuple(numbers), complete)

    @property
    def highest(self) -> int:
        """The highest number that is used up; 0 for none."""
        return self.numbers[-1] if self.numbers else 0

    @property
    def next_number(self) -> int:
        """:raises SliceError: when there is none."""
        return following(self.highest, self.store.path(commit_name(self.highest)))

    def versions(self, *, below: int | None = None, max_bytes: int = _COMMIT_BYTES) -> Iterator[Version]:
        """Yields versions, the newest first, reading one commit each.

        :param below: only older ones than this, without those whose commit nobody can read.
        :param max_bytes: of a commit.
        :raises SliceError: when the newest commit is damaged, or of a newer provider.
        """
        for number in reversed(self.numbers):
            if below is not None and number >= below:
                continue
            try:
                version = read_version(self.store, number, max_bytes)
            except SliceError as e:
                if below is None or e.kind != "input":
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


def read_version(store: Store, number: int, max_bytes: int = _COMMIT_BYTES) -> Version | None:
    """Returns a version; None when its number is void, or has no commit.

    :raises SliceError: when the commit is damaged, or of another format.
    """
    name = commit_name(number)
    try:
        body = store.read_document(name, max_bytes)
        if body is None or (isinstance(body, dict) and body.get("void")):
            return None
        if not isinstance(body, dict) or type(body.get("format")) is not int:
            raise CorruptFileError(store, name, "it is no commit")
        if body["format"] != FORMAT:
            age, advice = ("newer", "Upgrade the provider here")
            if body["format"] < FORMAT:
                age, advice = ("older", "Set rerun.force=True to answer the slice again")
            raise SliceError(
                f"{store.path(name)} was written by version {body.get('provider_version')} of the provider, "
                f"which is {age} than this one",
                kind="input",
                advice=advice,
            )
        try:
            check_body(body, number)
        except ValueError as e:
            raise CorruptFileError(store, name, str(e)) from e
        return Version(number, body)
    except CorruptFileError as e:
        unknown = replace(
            e.failure,
            kind="input",
            sentence=f"{e.failure.sentence}, and the published version is unknown",
            advice=("Restore that file, or set rerun.force=True to answer the slice again",),
        )
        raise SliceError.of(unknown) from e


def create_commit(store: Store, number: int, body: dict[str, Any]) -> bool:
    """Creates a commit. Returns False when the number is taken."""
    return store.create_document(commit_name(number), {**body, "format": FORMAT})


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


def task_name(task: Mapping[str, str]) -> str:
    """Such as `task 'infer' of DAG 'reviews'`."""
    return f"task {task['task_id']!r} of DAG {task['dag_id']!r}"


def commit_name(number: int) -> str:
    return f"{COMMITS}/commit-{number:06}.json"


def complete_name(staged: str) -> str:
    """File that says that the table showed the version with this staged folder, and that no copy of an older
    one can still arrive."""
    return f"{COMMITS}/complete-{staged}"
