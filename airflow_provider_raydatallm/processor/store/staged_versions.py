"""Staged versions: documents beside their staged files that hold all that their commits will hold.

`staged_versions/staged-000003-1a2b3c4d.json` is created once its files are staged under
`staged/000003-1a2b3c4d/`, and never replaced: it would come back where somebody discards it just then. Nobody
needs to be alive for it: a later run, a person or a command commits or discards it (`publish.commit`). What
gates say of one that waits, once a later run judged it anew, is in a document of its own, in the checkpoint.
Imports only fsspec, for the Airflow side.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_raydatallm import __version__
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store, modified_at
from airflow_provider_raydatallm.processor.store.column_agreement import TableColumn
from airflow_provider_raydatallm.processor.store.commit_body import check_body
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    LAST_NUMBER,
    number_of_staged,
    plan_of_staged,
    staged_of_document,
    verdicts_of_staged,
)
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import PublishedFile, Version

#: Folder of the documents, in a slice's metadata.
STAGED_VERSIONS = "staged_versions"
#: Of the documents' format.
FORMAT = 3
#: How long a version that is held stays, unless it says otherwise.
KEEP_DAYS = 30.0
MOST_DAYS = 36_500.0
#: What a commit says of itself.
_OF_COMMITS = {"format", "void", "published_at", "staged_version"}
#: As of a commit.
_MAX_BYTES = 256 << 20
STAGE_ANEW = "Run the slice again, which stages it anew from its finished rows"


class StagedVersionError(SliceError):
    """A staged version that cannot be published."""

    def __init__(
        self, sentence: str, *, advice: str | Sequence[str] = (), row_texts: Sequence[str] = ()
    ) -> None:
        super().__init__(sentence, kind="input", advice=advice, row_texts=row_texts)


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    format: int
    provider_version: str
    name: str
    staged_at: str
    table: str
    follows: Annotated[int, Field(ge=0, le=LAST_NUMBER)]
    keep_days: Annotated[float, Field(ge=0, le=MOST_DAYS)]
    #: Keys that the slice's date has by other clocks.
    other_keys: list[str]
    #: Of each column its name, its type, and whether it is an answer's.
    columns: list[Annotated[list[Any], Field(min_length=3, max_length=3)]]
    commit: dict[str, Any]


@dataclass(frozen=True)
class StagedVersion:
    """:ivar name: of its document, and of the folder of its staged files.
    :ivar body: of the document.
    """

    name: str
    body: Mapping[str, Any]

    @cached_property
    def version(self) -> Version:
        """As it will be when its commit has the number that it was staged for."""
        return Version(self.number, self.body["commit"])

    @property
    def number(self) -> int:
        """The number that it was staged for."""
        return int(self.body["commit"]["number"])

    @property
    def follows(self) -> int:
        """The number of the version that it was built on; 0 for none."""
        return int(self.body["follows"])

    @property
    def keep_days(self) -> float:
        """How long `gc` keeps it; 0 for that of a run, which is kept as long as what else a run left."""
        return float(self.body["keep_days"])

    @property
    def is_held(self) -> bool:
        """Whether it waits for somebody who commits or discards it."""
        return self.keep_days > 0

    @property
    def table(self) -> str:
        return str(self.body["table"])

    @property
    def staged_at(self) -> str:
        return str(self.body["staged_at"])

    @property
    def other_keys(self) -> list[str]:
        """Keys that the slice's date has by other clocks: where one is published, this is not."""
        return list(self.body["other_keys"])

    @property
    def columns(self) -> dict[str, TableColumn]:
        """The columns that its slice publishes."""
        return {str(name): TableColumn(kind, bool(answer)) for name, kind, answer in self.body["columns"]}

    def with_gates(self, said: Sequence[GateVerdict] | None) -> StagedVersion:
        """:param said: what gates say of it now."""
        return self._with(None if said is None else [verdict.model_dump(mode="json") for verdict in said])

    def _with(self, gates: Any) -> StagedVersion:
        commit = self.body["commit"]
        return replace(
            self, body={**self.body, "commit": {**commit, "report": {**commit["report"], "gates": gates}}}
        )

    def as_judged(self, metadata: Store) -> StagedVersion:
        """Returns it with what gates said of it last.

        :raises CorruptFileError: when the document that says so is damaged.
        """
        body = metadata.read_document(self._verdicts) if self.is_held else None
        if body is None:
            return self
        if not isinstance(body, dict) or body.keys() != {"gates"}:
            raise CorruptFileError(metadata, self._verdicts, "it holds other than verdicts")
        return self._with(body["gates"])

    def keep_verdicts(self, metadata: Store) -> None:
        """Who commits it from here on commits these, which people are shown."""
        metadata.put_document(self._verdicts, {"gates": self.body["commit"]["report"]["gates"]})

    @property
    def _verdicts(self) -> str:
        return f"{CHECKPOINT}/{self.version.question}/{verdicts_of_staged(self.name)}"

    def locate(self, folders: SliceFolders) -> dict[PublishedFile, tuple[Store, str]]:
        """Where its files are until it is published."""
        version = self.version
        return {file: (folders.staging, version.staged_name(file)) for file in version.all_files}

    def to_report(self, output_path: str) -> Report:
        return self.version.to_report(output_path)


def document_of(
    name: str,
    commit: Mapping[str, Any],
    *,
    table: str,
    follows: int,
    columns: Mapping[str, TableColumn],
    keep_days: float,
    other_keys: Sequence[str],
) -> StagedVersion:
    """A version whose files are staged.

    :param name: of their folder.
    :param commit: the body of its commit.
    :param table: address of the slice's folder in the table.
    """
    body = {
        "format": FORMAT,
        "provider_version": __version__,
        "name": name,
        "staged_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "table": table,
        "follows": follows,
        "keep_days": keep_days,
        "other_keys": list(other_keys),
        "columns": [[column, c.kind, c.is_answer] for column, c in columns.items()],
        "commit": dict(commit),
    }
    return StagedVersion(name, body)


def document_name(name: str) -> str:
    return f"{STAGED_VERSIONS}/staged-{name}.json"


def staged_names(metadata: Store) -> list[str]:
    """The names of the staged versions, the oldest number first."""
    found = (staged_of_document(name) for name in metadata.names(STAGED_VERSIONS))
    return sorted(name for name in found if name is not None)


def read_staged(folders: SliceFolders, name: str, max_bytes: int = _MAX_BYTES) -> StagedVersion | None:
    """Returns a staged version; None when there is none of that name.

    :param max_bytes: of its document.
    :raises StagedVersionError: when its document is damaged or was edited, is of another format, or is of
        another slice or table.
    """
    metadata = folders.metadata
    path = metadata.path(document_name(name))
    if number_of_staged(name) is None or "/" in name:
        return None
    try:
        body = metadata.read_document(document_name(name), max_bytes)
    except CorruptFileError as e:
        raise StagedVersionError(
            f"{path} is damaged, or was edited, and cannot be published",
            advice=STAGE_ANEW,
            row_texts=e.failure.row_texts,
        ) from e
    if body is None:
        return None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        found = body.get("format") if isinstance(body, dict) else None
        advice = STAGE_ANEW
        if isinstance(found, int) and found > FORMAT:
            advice = "Upgrade the provider here"
        raise StagedVersionError(
            f"{path} is a staged version of format {found!r}, and this provider commits format {FORMAT}",
            advice=advice,
        )
    try:
        document = _Document.model_validate(body)
        if document.name != name or document.commit.get("staged") != name:
            raise ValueError(f"it is that of {document.name!r}")
        if own := _OF_COMMITS & document.commit.keys():
            raise ValueError(f"it says {sorted(own)[0]!r}, which only a commit does")
        number = number_of_staged(name) or 0
        check_body(document.commit, number)
        if document.commit["plan"] != plan_of_staged(name):  # who discards it removes that
            raise ValueError("it names the plan of another version")
        if document.follows >= number:  # then a version that it became would not be found
            raise ValueError(f"it follows version {document.follows}, and its number is {number}")
        _check_rows(document.commit)
    except ValueError as e:
        why = e.errors(include_url=False)[0]["msg"] if isinstance(e, ValidationError) else e
        raise StagedVersionError(
            f"{path} is no staged version that this provider wrote",
            advice=STAGE_ANEW,
            row_texts=(str(why),),
        ) from e
    staged = StagedVersion(name, body)
    if not folders.table.is_folder(staged.table):
        raise StagedVersionError(
            f"{path} was staged for {staged.table}, and this slice's folder is {folders.table.url}: it is "
            "published there only",
            advice="Run this slice to stage it here",
        )
    try:  # else it would be committed, and nobody could show it
        staged = staged.as_judged(metadata)
        folders.of(staged.version)
        staged.to_report(folders.table.url)
    except CorruptFileError as e:
        raise StagedVersionError(
            f"{path} cannot be published: {e.failure.sentence}",
            advice=STAGE_ANEW,
            row_texts=e.failure.row_texts,
        ) from e
    except SliceError as e:
        if e.kind != "input":
            raise
        raise StagedVersionError(
            f"{path} cannot be published: {e.failure.sentence}",
            advice=e.failure.advice,
            row_texts=e.failure.row_texts,
        ) from e
    return staged


def _check_rows(commit: Mapping[str, Any]) -> None:
    """:raises ValueError: when its files have other rows than its report says."""
    counts = commit["report"]["counts"]
    for kind, files in (("succeeded", commit["files"]), ("quarantined", commit["quarantine"])):
        rows = sum(file["rows"] for file in files)
        if rows != counts.get(kind):
            raise ValueError(f"its files have {rows:,} rows {kind}, and its report says {counts.get(kind)}")


def find_staged(
    folders: SliceFolders,
    *,
    question: str,
    input_hash: str,
    fingerprint: str,
    instant: str | None,
    follows: int,
) -> StagedVersion | None:
    """Returns the newest staged version that answers a question over an input, on top of a version; None
    where there is none that can be read.

    :param instant: the slice's date, which one of its name may not have.
    """
    for name in reversed(staged_names(folders.metadata)):
        try:
            staged = read_staged(folders, name)
        except StagedVersionError:
            continue  # it stays for people, and for `gc`
        if staged is None:
            continue
        version = staged.version
        is_own = (version.question, version.input_hash, version.fingerprint, staged.follows) == (
            question, input_hash, fingerprint, follows,
        )  # fmt: skip
        if is_own and version.body.get("slice_instant") in (None, instant):
            return staged
    return None


def remove_document(metadata: Store, name: str) -> None:
    metadata.remove_file(document_name(name))
    metadata.remove_empty(STAGED_VERSIONS)


def held_questions(folders: SliceFolders, besides: str | None) -> frozenset[str] | None:
    """The checkpoints whose rows are those of a version that waits for somebody; None when one cannot be
    read: all of them.

    :param besides: the name of one that is not meant.
    """
    questions = set()
    for name in staged_names(folders.metadata):
        if name == besides:
            continue
        try:
            staged = read_staged(folders, name)
        except StagedVersionError:
            return None
        if staged is not None and staged.is_held:
            questions.add(staged.version.question)
    return frozenset(questions)


@dataclass(frozen=True)
class KeptStaged:
    """What `gc` leaves: staged versions that are not too old yet.

    :ivar names: of them.
    :ivar too_old: the names of the others.
    :ivar questions: the checkpoints whose rows they count; None when one cannot be read: all of them.
    """

    names: frozenset[str] = frozenset()
    too_old: frozenset[str] = frozenset()
    questions: frozenset[str] | None = frozenset()

    @classmethod
    def list(cls, folders: SliceFolders, days: float) -> KeptStaged:
        """
        :param days: after which `gc` removes what runs left. One that is held has its own time; one that
            cannot be read, that of those held by default.
        """
        names, too_old, questions, all_known = set(), set(), set(), True
        for path, info in folders.metadata.details(STAGED_VERSIONS).items():
            name = staged_of_document(path)
            if name is None:
                continue
            keep_days, question = KEEP_DAYS, None
            try:
                staged = read_staged(folders, name)
                if staged is None:
                    continue
                keep_days, question = staged.keep_days, staged.version.question
            except StagedVersionError:
                pass
            if (time.time() - modified_at(info)) / 86400 >= max(days, keep_days):
                too_old.add(name)
                continue
            names.add(name)
            if question is None:
                all_known = False
            else:
                questions.add(question)
        return cls(frozenset(names), frozenset(too_old), frozenset(questions) if all_known else None)

    def counts(self, question: str) -> bool:
        """Whether one of those that stay counts the rows of a checkpoint."""
        return bool(self.names) and (self.questions is None or question in self.questions)
