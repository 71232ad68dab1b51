"""Stages a slice's version: its files, and the document that holds all that its commit will hold.
`publish.commit` publishes it from there.

Invariants:

* A version's number is decided once, with the version that it follows. Its create-only commit decides that it
  is the slice's content; a run that finds its number taken decides again.
* The commit names the staged files, their checksums and the fragments whose rows they hold. Files have names
  of their own for each attempt to write them, so that nobody changes a file that a commit names.
* The document comes last. Who finds it finds all its files, until somebody removes it.
* The table shows a committed version, or none: only `reconcile` writes there, from staged files.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint, asked, fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.hold import HOLD_DAYS
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.publish.answer_columns import undecided_as_null
from airflow_provider_raydatallm.processor.publish.commit import remove_staged_files
from airflow_provider_raydatallm.processor.publish.parts import Part, PartPlan, Totals, stage_part
from airflow_provider_raydatallm.processor.publish.row_details import detail_columns
from airflow_provider_raydatallm.processor.publish.table_schema import check_columns
from airflow_provider_raydatallm.processor.publish.value_counts import (
    committed,
    label_column,
    probability_column,
)
from airflow_provider_raydatallm.processor.ray_runtime.own_task import own_task
from airflow_provider_raydatallm.processor.sinks.kinds import open_sink
from airflow_provider_raydatallm.processor.store.checkpoint import ASKED, Checkpoint
from airflow_provider_raydatallm.processor.store.file_names import STAGED, plan_of_staged
from airflow_provider_raydatallm.processor.store.lease import Lease
from airflow_provider_raydatallm.processor.store.ledger import Ledger
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import (
    StagedVersion,
    document_name,
    document_of,
    remove_document,
)
from airflow_provider_raydatallm.processor.store.table_columns import TableColumns, own_columns
from airflow_provider_raydatallm.processor.store.versions import Commits, NumberTakenError, Version

#: A file of `file_per_input` that would be larger becomes several: object stores copy up to 5 GB in one
#: request.
_MAX_FILE_BYTES = 4 << 30

#: Runs a function on each of some values, anywhere, and returns the results in their order.
Map = Callable[[Callable[[PartPlan], Part], Iterable[PartPlan]], Iterable[Part]]


@dataclass(frozen=True)
class Staging:
    """Stages one version.

    :param base: the version that it follows, if any that can be read.
    :param follows: its number; 0 for none.
    :param ledger: each row's answer or failure is in its fragments.
    :param honoured: the decisions of people by which rows in it were asked again.
    :param fields: the published columns of the answers, without `publish.details`.
    :param table: the table's columns, as this version has them.
    """

    folders: SliceFolders
    job: SliceJob
    plan: Plan
    checkpoint: Checkpoint
    ledger: Ledger
    honoured: Sequence[str]
    fields: Sequence[pa.Field]
    table: TableColumns
    number: int
    base: Version | None
    follows: int
    lease: Lease

    def stage(
        self, run_all: Map, report: Callable[[Totals, Sequence[str]], Report], *, keep_days: float = 0
    ) -> StagedVersion:
        """Stages the version's files, and puts its document.

        :param report: builds the report from the parts' totals, and the addresses of the staged rows.
        :param keep_days: how long it waits for somebody who commits or discards it; 0 when this run commits
            it, unless the report says that a person decides.
        :raises CorruptFileError: naming a damaged fragment; nothing was staged then.
        :raises LeaseLostError: when another run holds the slice now.
        :raises NumberTakenError: when its number is used up, and it is to wait or its files cannot be put.
        """
        check_columns(self.job, self.plan, self._columns)
        self.lease.check()
        name = f"{self.number:06}-{uuid.uuid4().hex[:8]}"
        try:
            version = self._stage(name, run_all, report, keep_days)
        except StorageError as e:
            if not self._is_number_taken():
                raise
            # Who shows a later version removes these files, and their folder, while they are written.
            raise self._number_taken() from e
        self.folders.metadata.create_document(document_name(name), version.body)
        # `gc` uses a number up before it looks for the documents whose files it leaves.
        if version.is_held and self._is_number_taken():
            remove_document(self.folders.metadata, name)
            raise self._number_taken()
        return version

    @property
    def _columns(self) -> list[pa.Field]:
        """All that are published beside the input's."""
        return [*self.fields, *detail_columns(self.job)]

    def _is_number_taken(self) -> bool:
        return Commits.list(self.folders.metadata).highest >= self.number

    def _number_taken(self) -> NumberTakenError:
        return NumberTakenError(f"number {self.number} of {self.folders.table.url} is taken")

    def _stage(
        self, staged: str, run_all: Map, report: Callable[[Totals, Sequence[str]], Report], keep_days: float
    ) -> StagedVersion:
        """Stages the files. Returns the document that is to say so.

        :param staged: the name of their folder.
        """
        groups = self._groups()
        plans = self._part_plans(groups, f"{STAGED}/{staged}")
        parts = [stage_part(p) for p in plans] if len(groups) == 1 else list(run_all(stage_part, plans))
        totals = sum((p.totals for p in parts), Totals())
        files = [f"{self.folders.staging.url}/{STAGED}/{staged}/{p.data.plain_name}" for p in parts]
        if totals.rows + totals.quarantined != self.plan.rows:
            raise SliceError(
                f"{self.folders.table.url}: {totals.rows:,} answered and {totals.quarantined:,} failed rows "
                f"do not make up the {self.plan.rows:,} planned ones; nothing is published",
                kind="transient",
            )
        try:
            result = report(totals, files)
        except SliceError:  # a gate stops it, say: nobody publishes these, and the next try stages its own
            with contextlib.suppress(StorageError):
                remove_staged_files(self.folders, staged)
            raise
        if result.awaits_person:
            keep_days = keep_days or HOLD_DAYS
        plan_name = plan_of_staged(staged)
        self.folders.metadata.create_document(plan_name, {**self.plan.to_json(), ASKED: asked(self.job)})
        body: dict[str, object] = {
            "number": self.number,
            "base": self.base.number if self.base is not None else None,
            "staged": staged,
            "keep": self.job.publish.keep_versions,
            # Where they are not beside the table, which may be moved with them.
            "table": self.folders.table.url if self.job.publish.metadata_path is not None else None,
            "quarantine_folder": (
                self.folders.quarantine.url if self.job.publish.quarantine_path is not None else None
            ),
            "slice_key": self.job.slice_key,
            "slice_instant": self.job.slice_instant,
            "fingerprint": fingerprint(self.job),
            "answers": answers_fingerprint(self.job),
            "input": {
                "path": self.job.resolved_input_path,
                "files": self.plan.files,
                "rows": self.plan.rows,
                "hash": self.plan.input_hash,
            },
            "model_source": self.job.model_source,
            "output_column": self.job.output_column,
            "epoch": self.lease.epoch,
            "run": self.lease.name,
            # Who may read the task's data may read these rows; see `tables.slice_view`.
            "task": own_task(),
            "files": [asdict(p.data) for p in parts],
            "quarantine": [asdict(p.quarantine) for p in parts if p.quarantine],
            "plan": plan_name,
            "question": self.checkpoint.question,
            "honoured": list(self.honoured),
            "takes_over": self.checkpoint.base.number if self.checkpoint.base is not None else None,
            "fragments": _count_and_hash(self._fragments()),
            "report": result.model_dump(mode="json"),
            **counted(self.job, self.fields, totals, self.checkpoint.carried_over(self.plan)),
        }
        open_sink(self.folders).prepare(staged)
        return document_of(
            staged,
            body,
            table=self.folders.table.url,
            follows=self.follows,
            columns=own_columns(
                self.plan.schema, undecided_as_null(self.job, self._columns, self.table.answers)
            ),
            keep_days=keep_days,
            other_keys=self.job.other_slice_keys,
        )

    def _fragments(self) -> list[str]:
        """The names of those that count."""
        return [*self.ledger.rows.names, *self.ledger.failures.names]

    def _part_plans(self, groups: Sequence[Sequence[int]], staged: str) -> Iterator[PartPlan]:
        """One after the other: together they would hold the ledger a second time."""
        units = self.plan.units
        divided = (kind.divide(groups, len(units)) for kind in (self.ledger.rows, self.ledger.failures))
        for index, (group, answered, failed) in enumerate(zip(groups, *divided, strict=True)):
            yield PartPlan(
                url=self.folders.metadata.url,
                plan=replace(self.plan, units=tuple(units[i] for i in group)),
                folder=self.checkpoint.folder,
                answered=answered,
                failed=failed,
                fields=self.fields,
                staging_url=self.folders.staging.url,
                staged=staged,
                number=self.number,
                index=index,
                count=len(groups),
                input=units[group[0]].file.path if self.job.publish.file_per_input and group else None,
                labels=label_column(self.job),
                probability=probability_column(self.job),
                measured=self.job.quality.measured_columns,
                details=detail_columns(self.job),
                metadata=_known_of_file(self.job),
            )

    def _groups(self) -> list[list[int]]:
        """Units of each published file, in plan order."""
        units = self.plan.units
        names = set(self._fragments())
        stored = self.folders.metadata.files(self.checkpoint.folder)
        bytes_per_row = sum(f.size for f in stored if f.name in names) / max(self.plan.rows, 1)
        rows_of: Counter[str] = Counter()
        for unit in units:
            rows_of[unit.file.path] += unit.rows
        sizes = [u.rows * (u.file.size / rows_of[u.file.path] + bytes_per_row) for u in units]
        if not self.job.publish.file_per_input:
            return _split(range(len(units)), sizes, self.job.publish.max_file_bytes)
        by_file: dict[str, list[int]] = {}
        for index, unit in enumerate(units):
            by_file.setdefault(unit.file.path, []).append(index)
        groups = [group for file in by_file.values() for group in _split(file, sizes, _MAX_FILE_BYTES)]
        return groups or [[]]


def counted(
    job: SliceJob, fields: Iterable[pa.Field], totals: Totals, carried_over: Mapping[str, Any] | None
) -> dict[str, object]:
    """Returns what a commit says beside its report, for gates of this slice and of later ones.

    :param fields: published columns.
    :param carried_over: see `Checkpoint.carried_over`.
    """
    before = carried_over.get("known", {}) if carried_over is not None else {}
    return {
        "known": dict(Counter(totals.known) + Counter(before)),
        "labels": committed(job, fields, totals.labels),
        "confidence": totals.confidence,
        "spreads": {column: dict(rows) for column, rows in totals.spreads.items()},
    }


def _known_of_file(job: SliceJob) -> dict[str, str]:
    """What the metadata of published files says, where the job asks for details."""
    if not job.publish.details:
        return {}
    return {"ray_llm.model": job.model_source, "ray_llm.fingerprint": fingerprint(job)}


def _count_and_hash(names: Iterable[str]) -> dict[str, object]:
    """Identifies fragments: their names would make the commits of long slices large."""
    names = sorted(names)
    return {"count": len(names), "sha256": hashlib.sha256("\n".join(names).encode()).hexdigest()}


def _split(units: Sequence[int], sizes: Sequence[float], max_bytes: int) -> list[list[int]]:
    """Cuts units into groups of about the same size, in their order."""
    total = sum(sizes[i] for i in units)
    limit, filled = total / max(1, math.ceil(total / max_bytes)), 0.0
    groups: list[list[int]] = [[]]
    for unit in units:
        if groups[-1] and filled + sizes[unit] / 2 > limit * len(groups):
            groups.append([])
        groups[-1].append(unit)
        filled += sizes[unit]
    return groups
