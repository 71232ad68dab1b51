"""Publishes a slice: seal, parts, commit, and the files that derive from the commit.

Invariants:

* `seal-<plan>.json` (create-only) names the fragments that count: every publisher of this plan publishes the
  same rows.
* `commit-<version>.json` (create-only) decides that the version is published. Manifest, report and `_SUCCESS`
  derive from it, in this order.
* A slice of one file replaces it in one step. With several files `_SUCCESS` is absent from before the first
  new part until the last old one is gone; parts carry the version and the seal in their names.
* A published file is removed only after its successor's manifest is written.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from airflow_provider_raydatallm import __version__
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.publish.parts import Part, PartPlan, Totals, build_part, put_part
from airflow_provider_raydatallm.processor.publish.table_schema import check_columns
from airflow_provider_raydatallm.processor.storage import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.fragments import fragment_fields
from airflow_provider_raydatallm.processor.store.lease import Lease, LeaseLostError, read_holder
from airflow_provider_raydatallm.processor.store.ledger import Fragment

PART = "part-00000.parquet"
QUARANTINE = "_quarantine"

#: Names that carry a version number (`part-00000.parquet` carries none), and folders of kept versions.
_VERSIONED = re.compile(r"(?:part|plan|commit)-(\d{6})[-.].*|(\d{6})")

#: Runs a function on each of some values, anywhere, and returns the results in their order.
Map = Callable[[Callable[[PartPlan], Part], Sequence[PartPlan]], Iterable[Part]]


@dataclass(frozen=True)
class Seal:
    """The fragments that count, and the published columns of their answers."""

    name: str
    fragments: tuple[str, ...]
    fields: tuple[pa.Field, ...]

    @property
    def tag(self) -> str:
        """Distinguishes files of this seal from those of others."""
        return hashlib.sha256("\n".join(self.fragments).encode()).hexdigest()[:8]


def seal(
    store: Store, folder: str, plan: Plan, fragments: Sequence[Fragment], fields: Sequence[pa.Field] | None
) -> Seal:
    """Decides which fragments count; the first writer decides.

    :param fields: the published columns; None to take them from the fragments.
    """
    columns = list(fields) if fields is not None else fragment_fields(store, folder, fragments)
    schema = base64.b64encode(pa.schema(columns).serialize()).decode()
    body = {"fragments": [f.name for f in fragments], "schema": schema}
    store.create_document(f"{folder}/seal-{plan.input_hash}.json", body)
    decided = read_seal(store, folder, plan)
    assert decided is not None
    return decided


def read_seal(store: Store, folder: str, plan: Plan) -> Seal | None:
    """Returns the existing seal; None when there is none, or it is damaged."""
    name = f"{folder}/seal-{plan.input_hash}.json"
    try:
        body = store.read_document(name)
    except CorruptFileError as e:
        store.keep_damaged_file(name, e, "the slice is sealed again")
        return None
    if body is None:
        return None
    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(body["schema"])))
    return Seal(name, tuple(body["fragments"]), tuple(schema))


@dataclass(frozen=True)
class Publication:
    """Publishes one sealed version."""

    store: Store
    job: SliceJob
    plan: Plan
    folder: str
    fragments: Sequence[Fragment]
    seal: Seal
    version_number: int
    lease: Lease
    previous_version: versions.Version | None

    def publish(self, run_all: Map, report: Callable[[Totals], Report]) -> Report:
        """Builds the parts and commits them.

        :param report: builds the report from the parts' totals.
        :raises CorruptFileError: naming a damaged fragment; nothing was published then.
        :raises LeaseLostError: when another run holds the slice now.
        """
        check_columns(self.job, self.plan, self.seal.fields)
        groups = self._groups()
        single = len(groups) <= 1 and not self.job.file_per_input
        plans = self._part_plans(groups, single)
        try:
            return self._publish(plans, single, run_all, report)
        except Exception:
            # A run that was paused while another one took over finds files changed or gone: no damage.
            try:
                self.lease.check()
            except LeaseLostError:
                own_files = [name for p in plans for name in (p.data_name, p.quarantine_name)]
                roll_back(self.store, [*own_files, self._plan_file])
                raise
            raise

    @property
    def _plan_file(self) -> str:
        return versions.plan_name(self.version_number, self.seal.tag)

    def _publish(
        self, plans: Sequence[PartPlan], single: bool, run_all: Map, report: Callable[[Totals], Report]
    ) -> Report:
        with tempfile.TemporaryDirectory(prefix="ray-llm-publish-") as scratch:
            replaced = self.store.version(PART)
            if single:
                built = [build_part(p, Path(scratch)) for p in plans]
                parts, paths = [p for p, _ in built], [path for _, path in built]
            self.lease.check()
            self._keep_previous()
            if (
                not single
                or self.previous_version is None
                or any(f["path"] != PART for f in self.previous_version.data_files)
            ):
                self.store.remove(versions.SUCCESS)
            if single:
                for path in paths:
                    self.store.replace(PART, path, self.lease.check, expected=replaced)
            else:
                parts = list(run_all(put_part, plans))
        result = report(sum((p.totals for p in parts), Totals()))
        self._commit(parts, result)
        return result

    def _groups(self) -> list[list[int]]:
        """Units of each published file, in plan order."""
        units = self.plan.units
        if not self.plan.columns:
            return []
        if self.job.file_per_input:
            by_file: dict[str, list[int]] = {}
            for index, unit in enumerate(units):
                by_file.setdefault(unit.file.path, []).append(index)
            return list(by_file.values())
        names = {f.name for f in self.fragments}
        answer_bytes = sum(f.size for f in self.store.files(self.folder) if f.name in names)
        bytes_per_row = answer_bytes / max(self.plan.rows, 1)
        rows_of: Counter[str] = Counter()
        for unit in units:
            rows_of[unit.file.path] += unit.rows
        sizes = [u.rows * (u.file.size / rows_of[u.file.path] + bytes_per_row) for u in units]
        count = max(1, math.ceil(sum(sizes) / self.job.max_file_bytes))
        groups: list[list[int]] = [[]]
        limit, filled = sum(sizes) / count, 0.0
        for index, size in enumerate(sizes):
            if groups[-1] and filled + size / 2 > limit * len(groups):
                groups.append([])
            groups[-1].append(index)
            filled += size
        return groups

    def _part_plans(self, groups: Sequence[Sequence[int]], single: bool) -> list[PartPlan]:
        group_of = {self.plan.units[i].id: g for g, units in enumerate(groups) for i in units}
        fragments: list[list[Fragment]] = [[] for _ in groups]
        for fragment in self.fragments:
            for group in dict.fromkeys(group_of[r.unit] for r in fragment.ranges if r.unit in group_of):
                fragments[group].append(fragment)
        plans = []
        for index, units in enumerate(groups):
            name = f"part-{self.version_number:06}-{self.seal.tag}-{index:05}.parquet"
            plans.append(
                PartPlan(
                    url=self.store.url,
                    plan=replace(self.plan, units=tuple(self.plan.units[i] for i in units)),
                    folder=self.folder,
                    fragments=fragments[index],
                    fields=self.seal.fields,
                    data_name=PART if single else name,
                    quarantine_name=f"{QUARANTINE}/{name}",
                )
            )
        return plans

    def _keep_previous(self) -> None:
        if self.previous_version is not None and self.job.keep_versions:
            for file in self.previous_version.files:
                kept = f"{versions.VERSIONS}/{self.previous_version.version_number:06}/{file['path']}"
                self.store.remove_scratch(kept.rpartition("/")[0])
                if self.store.version(kept) is None:
                    self.store.copy(file["path"], kept)

    def _commit(self, parts: Sequence[Part], report: Report) -> None:
        self.store.create_document(self._plan_file, self.plan.to_json())
        manifest = {
            "version": 1,
            "number": self.version_number,
            "epoch": self.lease.epoch,
            "slice_key": self.job.slice_key,
            "slice_instant": self.job.slice_instant,
            "fingerprint": fingerprint(self.job),
            "input": {
                "path": self.job.resolved_input_path,
                "files": self.plan.files,
                "rows": self.plan.rows,
                "hash": self.plan.input_hash,
            },
            "model_source": self.job.model_source,
            "output_column": self.job.output_column,
            "files": [p.data for p in parts],
            "quarantine": [p.quarantine for p in parts if p.quarantine],
            "plan": self._plan_file,
            "published_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "provider_version": __version__,
        }
        body = {"manifest": manifest, "report": report.model_dump(mode="json")}
        self.lease.check()
        if not self.store.create_document(versions.commit_name(self.version_number), body):
            raise LeaseLostError(
                f"another run published version {self.version_number} of {self.store.url} first"
            )
        write_derived_files(
            self.store,
            versions.Version(self.version_number, manifest, body["report"]),
            self.lease,
            self.job.keep_versions,
        )


def write_derived_files(store: Store, version: versions.Version, lease: Lease, keep_versions: int) -> None:
    """Writes what derives from a commit and removes what it replaced. Safe to repeat."""
    lease.check()
    store.put_json(versions.MANIFEST, version.manifest)
    store.put_json(versions.REPORT, version.report)
    lease.check()
    named = {f["path"] for f in version.files} | {
        version.manifest["plan"],
        versions.commit_name(version.version_number),
    }
    for folder, keep in (("", 0), (QUARANTINE, 0), (versions.VERSIONS, keep_versions)):
        store.remove_scratch(folder)
        for name in store.names(folder):
            path = f"{folder}/{name}".lstrip("/")
            if path in named or not (path in (PART, versions.PROGRESS) or _VERSIONED.fullmatch(name)):
                continue
            number = _number_of(name)
            if number is None or number > version.version_number:
                lease.check()  # it may be of a later version, unless its run died before the commit
                store.remove(path)
            elif number == version.version_number or number < version.version_number - keep:
                store.remove(path)
    store.remove_empty(QUARANTINE)
    store.put(versions.SUCCESS, b"")
    lease.check()


def roll_back(store: Store, own: Iterable[str] = ()) -> None:
    """Rolls back files written after losing the lease, by a run that was paused between a check and its step.

    While another run holds the lease, it cleans up itself (`write_derived_files`).

    :param own: files that this run may have put.
    """
    version = versions.newest_version(store)
    if version is None or read_holder(store) is not None:
        return
    for name in set(own) - {f["path"] for f in version.files} - {PART, version.manifest["plan"]}:
        store.remove(name)
    if versions.files_are_intact(store, version):
        store.put_json(versions.MANIFEST, version.manifest)
        store.put_json(versions.REPORT, version.report)
        store.put(versions.SUCCESS, b"")


def _number_of(name: str) -> int | None:
    """The version of a file; None for the one file of a slice, which any version may have."""
    match = _VERSIONED.fullmatch(name)
    return int(match[1] or match[2]) if match else None
