"""The audit: published rows against the input, and the folder against what it claims of itself.

Every published row is compared in full with what must be there, at its place. Lost, duplicated and altered
rows are counted; everything else that is not as promised is a fault, in words.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import report_name, slice_paths
from airflow_provider_raydatallm.processor.sinks.folder import KEPT, SUCCESS
from airflow_provider_raydatallm.processor.storage.store import Store, is_scratch
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    COMMITS,
    PROGRESS,
    REJECTED,
    STAGED,
    number_of_file,
    number_of_plan,
    number_of_staged,
    staged_of_complete,
)
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import STAGED_VERSIONS
from airflow_provider_raydatallm.processor.store.versions import Commits, PublishedFile, Version
from airflow_provider_raydatallm.reader import published_dataset
from tests.chaos.readers import readers

Row = dict[str, Any]


@dataclass
class Findings:
    """Rows, and faults of another kind. `litter`: files that no reader sees and nothing names."""

    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    altered: int = 0
    faults: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.altered or self.faults)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Promise:
    """What must be published. `answer`: the column whose values `is_answer` judges, when they are not known
    beforehand. `key`: the column that tells rows apart."""

    rows: Sequence[Row]
    quarantined: Sequence[Row] = ()
    keep: int = 0
    tokens: tuple[int, int] | None = None
    answer: str | None = None
    key: str = "id"
    is_answer: Callable[[Any], bool] = lambda value: value is not None


def audit(slice_path: str, promise: Promise) -> Findings:
    """Audit a finished slice."""
    folders, found = SliceFolders.open(slice_paths(slice_path)), Findings()
    faults = found.faults
    commits = Commits.list(folders.metadata)
    version = commits.newest()
    if version is None:
        faults.append("nothing is committed")
        found.lost = len(promise.rows)
        return found
    rows = _rows(folders.table, version.files, faults)
    aside = _rows(folders.quarantine, version.quarantine, faults)
    found.rows = len(rows)
    compare(rows, promise, found)
    _check_quarantine(aside, promise.quarantined, found)
    _check_shown(folders, version, faults)
    _check_metadata(folders, commits, version, promise.keep, found)
    _check_report(version, promise, folders.metadata, faults)
    by_key = sorted(rows, key=lambda row: row[promise.key])
    for reader, read in readers(slice_path).items():
        try:
            if sorted(read(), key=lambda row: row[promise.key]) != by_key:
                faults.append(f"{reader} sees other rows than the commit names")
        except Exception as e:
            faults.append(f"{reader} fails: {type(e).__name__}: {e}")
    if published_dataset(slice_path).to_table().to_pylist() != rows:
        faults.append("published_dataset has another order of rows than the commit")
    return found


def compare(rows: Sequence[Row], promise: Promise, found: Findings) -> None:
    """Count the lost, the duplicated and the altered; a row at another place than its own is altered."""
    wanted = {row[promise.key]: row for row in promise.rows}
    seen = Counter(row[promise.key] for row in rows)
    found.lost += sum(i not in seen for i in wanted)
    found.duplicated += sum(n - 1 for n in seen.values())
    first: dict[Any, Row] = {}
    for row in rows:
        first.setdefault(row[promise.key], row)
    for i, row in first.items():
        if promise.answer is not None:
            row = dict(row)
            good = promise.is_answer(row.pop(promise.answer))
        else:
            good = True
        if i not in wanted or row != wanted[i] or not good:
            found.altered += 1
    order, right = list(first), [row[promise.key] for row in promise.rows if row[promise.key] in first]
    if order != right and set(order) == set(right):
        found.altered += sum(a != b for a, b in zip(order, right, strict=True))
        found.faults.append("rows are not in input order")


def glance(slice_path: str, allowed: Sequence[Sequence[Row]], *, published: bool) -> list[str]:
    """What is wrong with what readers see of a slice that nobody works on at the moment.

    :param allowed: the rows of the version before and of the one in the making: it must be one of them.
    :param published: whether there was a version before.
    """
    folders, faults = SliceFolders.open(slice_paths(slice_path)), []
    wanted = [list(rows) for rows in allowed]
    try:
        if published_dataset(slice_path).to_table().to_pylist() not in wanted:
            faults.append("published_dataset sees neither version")
    except FileNotFoundError as e:
        if published:
            faults.append(f"published_dataset: {e}")
    except Exception as e:
        faults.append(f"published_dataset: {type(e).__name__}: {e}")
    commits = Commits.list(folders.metadata)
    for store in (folders.table, folders.quarantine):
        numbers = {number_of_file(n) for n in store.names() if n != SUCCESS}
        if len(numbers) > 1 or None in numbers or (numbers and not numbers <= set(commits.numbers)):
            faults.append(f"the folder shows {store.names()}, the commits are {commits.numbers}")
    names = folders.table.names()
    if SUCCESS in names:
        try:
            if _read_folder(folders.table) not in wanted:
                faults.append(f"a reader of the folder sees neither version in {names}")
        except Exception as e:
            faults.append(f"a reader of the folder fails: {type(e).__name__}: {e}")
    return faults


def contents(slice_path: str) -> dict[str, str]:
    """SHA-256 by name of all files that readers see, and of the commits and reports. Without what nobody
    reads: marks that older versions are shown, which who slept may put late, and half-written files."""
    folders = SliceFolders.open(slice_paths(slice_path))
    newest = Commits.list(folders.metadata).newest_number()
    found = {}
    for what, store, folder in (
        ("table", folders.table, ""), ("quarantine", folders.quarantine, ""),
        ("metadata", folders.metadata, COMMITS), ("metadata", folders.metadata, "reports"),
        ("kept", folders.staging, KEPT),
    ):  # fmt: skip
        for name in store.tree(folder):
            path = f"{folder}/{name}".lstrip("/")
            staged = staged_of_complete(name) if folder == COMMITS else None
            if is_scratch(name) or (staged is not None and (number_of_staged(staged) or 0) < newest):
                continue
            found[f"{what}/{path}"] = hashlib.sha256(store.read(path) or b"").hexdigest()
    return found


def _rows(store: Store, files: Sequence[PublishedFile], faults: list[str], named: str = "") -> list[Row]:
    """Of the files of a version, which are compared with what its commit says of them."""
    rows = []
    for file in files:
        name = named + (file.plain_name if named else file.name)
        content = store.read(name)
        if content is None:
            faults.append(f"{name} is committed and not there")
            continue
        table = pq.read_table(io.BytesIO(content))
        real = {"rows": table.num_rows, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        faults += [
            f"{name}: {k} is {getattr(file, k)} in the commit, really {v}"
            for k, v in real.items()
            if getattr(file, k) != v
        ]
        rows += table.to_pylist()
    return rows


def _read_folder(store: Store) -> list[Row]:
    """As readers do that know nothing of the provider."""
    names = [n for n in store.names() if not n.startswith(("_", "."))]
    tables = [pq.read_table(io.BytesIO(store.read(n) or b"")) for n in names]
    return pa.concat_tables(tables).to_pylist() if tables else []


def _check_quarantine(aside: Sequence[Row], wanted: Sequence[Row], found: Findings) -> None:
    rows = [{k: v for k, v in row.items() if not k.startswith("__")} for row in aside]
    if rows != list(wanted):
        found.faults.append(f"quarantine holds {len(rows)} rows, not the {len(wanted)} that failed")
    if any(not row["__error"] for row in aside):
        found.faults.append("a row in quarantine has no error")


def _check_shown(folders: SliceFolders, version: Version, faults: list[str]) -> None:
    """The table's folder holds the version and an empty _SUCCESS, that of its quarantine its quarantine."""
    for what, store, names in (
        ("the table", folders.table, {f.name for f in version.files} | {SUCCESS}),
        ("the quarantine", folders.quarantine, {f.name for f in version.quarantine}),
    ):
        there = set(store.tree(""))
        faults += [f"{what} lacks {name}" for name in sorted(names - there)]
        faults += [f"{what} holds {name}" for name in sorted(there - names)]
    if folders.table.read(SUCCESS):
        faults.append("_SUCCESS is not empty")
    if (
        folders.quarantine.is_local
        and not version.quarantine
        and folders.quarantine.fs.exists(folders.quarantine.root)
    ):
        faults.append("there is a folder of a quarantine that is empty")


def _check_metadata(
    folders: SliceFolders, commits: Commits, version: Version, keep: int, found: Findings
) -> None:
    """What is beside the table: all of it is named by a commit, or is litter that harms nobody."""
    kept = list(itertools.islice(commits.versions(below=version.number), keep))
    versions_ = [version, *kept]
    named = {versions.commit_name(n) for n in commits.numbers} | {v.plan for v in versions_}
    named |= {versions.complete_name(version.staged), report_name(version.number)}
    for old in kept:
        folder = f"{KEPT}/{old.number:06}/"
        _rows(folders.staging, old.all_files, found.faults, named=folder)
        named |= {f"{folder}{f.plain_name}" for f in old.all_files}
    there = set(folders.metadata.tree(""))
    found.faults += [f"{name} is missing" for name in sorted(named - there)]
    for name in sorted(there - named):
        folder, _, base = name.rpartition("/")
        staged = number_of_staged(name.removeprefix(f"{STAGED}/"))
        if folder == "reports" and any(base == report_name(n).rpartition("/")[2] for n in commits.numbers):
            continue  # of older versions
        if name == REJECTED:
            continue  # somebody rejected a version once
        if staged == version.number and base == SUCCESS:
            if folders.staging.read(name):
                found.faults.append(f"{name} is not empty")
            continue
        plan = number_of_plan(name)
        if plan == version.number:
            continue  # of a run that died before its commit: it goes with the next version
        of_runs = (f"{CHECKPOINT}/", "lease/", f"{STAGED_VERSIONS}/")
        is_run = name.startswith(of_runs) or name == PROGRESS
        # What no reader takes for data and no later run takes for its own is litter.
        is_late = staged is not None or plan is not None or name.startswith(f"{COMMITS}/complete-")
        if is_run or is_late or "_tmp-" in name:
            found.litter.append(name)
        else:
            found.faults.append(f"{name} is named by nothing")
    if folders.metadata.is_local and CHECKPOINT in folders.metadata.names() and not found.litter:
        found.litter.append(f"{CHECKPOINT}/")


def _check_report(version: Version, promise: Promise, store: Store, faults: list[str]) -> None:
    report = version.body["report"]
    Report.model_validate(report)
    if store.read_json(report_name(version.number)) != report:
        faults.append("the report is not that of the commit")
    if report["published_version"] != version.number:
        faults.append(f"the report is of version {report['published_version']}, the commit {version.number}")
    succeeded, quarantined = len(promise.rows), len(promise.quarantined)
    counts = report["counts"]
    wanted = {"planned": succeeded + quarantined, "succeeded": succeeded, "quarantined": quarantined}
    if {k: counts[k] for k in wanted} != wanted:
        faults.append(f"the report counts {counts}, where {wanted} is right")
    if not 0 <= counts["resumed"] <= counts["planned"]:
        faults.append(f"the report says that {counts['resumed']} rows were resumed")
    if promise.tokens is not None:
        tokens = (report["tokens"]["input"], report["tokens"]["output"])
        right = tuple(n * succeeded for n in promise.tokens)
        if tokens != right:
            faults.append(f"the report counts {tokens} tokens, where {right} is right")
