"""The audit: published rows against the input, and the folder against what it claims of itself.

Every published row is compared in full with what must be there, at its place. Lost, duplicated and altered
rows are counted; everything else that is not as promised is a fault, in words.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.reader import published_dataset

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
    beforehand."""

    rows: Sequence[Row]
    quarantined: Sequence[Row] = ()
    keep: int = 0
    tokens: tuple[int, int] | None = None
    answer: str | None = None
    is_answer: Callable[[Any], bool] = lambda value: value is not None


def audit(slice_path: str, promise: Promise) -> Findings:
    """Audit a finished slice."""
    store, found = Store(slice_path), Findings()
    faults = found.faults
    manifest, report = _json(store, versions.MANIFEST, faults), _json(store, versions.REPORT, faults)
    if store.read(versions.SUCCESS) is None:
        faults.append("no _SUCCESS")
    if manifest is None or report is None:
        found.lost = len(promise.rows)
        return found
    tables = []
    for file in [*manifest["files"], *manifest["quarantine"]]:
        content = store.read(file["path"])
        if content is None:
            faults.append(f"{file['path']} is in the manifest and not there")
            continue
        table = pq.read_table(io.BytesIO(content))
        real = {"rows": table.num_rows, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        faults += [
            f"{file['path']}: {k} is {file[k]} in the manifest, really {v}"
            for k, v in real.items()
            if file[k] != v
        ]
        tables.append((file in manifest["files"], table))
    rows = [row for is_data, table in tables if is_data for row in table.to_pylist()]
    aside = [row for is_data, table in tables if not is_data for row in table.to_pylist()]
    found.rows = len(rows)
    compare(rows, promise, found)
    _check_quarantine(aside, promise.quarantined, found)
    _check_folder(store, manifest, promise.keep, found)
    _check_report(report, manifest, promise, store, faults)
    for what, read in (("published_dataset", lambda: published_dataset(slice_path).to_table()),
                       ("a reader of the folder", lambda: _read_folder(store))):  # fmt: skip
        try:
            table = read()
            if (table.to_pylist() if table is not None else []) != rows:
                faults.append(f"{what} sees other rows than the manifest names")
        except Exception as e:
            faults.append(f"{what} fails: {type(e).__name__}: {e}")
    return found


def compare(rows: Sequence[Row], promise: Promise, found: Findings) -> None:
    """Count the lost, the duplicated and the altered; a row at another place than its own is altered."""
    wanted = {row["id"]: row for row in promise.rows}
    seen = Counter(row["id"] for row in rows)
    found.lost += sum(i not in seen for i in wanted)
    found.duplicated += sum(n - 1 for n in seen.values())
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row["id"], row)
    for i, row in first.items():
        if promise.answer is not None:
            row = dict(row)
            good = promise.is_answer(row.pop(promise.answer))
        else:
            good = True
        if i not in wanted or row != wanted[i] or not good:
            found.altered += 1
    order, right = list(first), [row["id"] for row in promise.rows if row["id"] in first]
    if order != right and set(order) == set(right):
        found.altered += sum(a != b for a, b in zip(order, right, strict=True))
        found.faults.append("rows are not in input order")


def glance(
    slice_path: str, allowed: Sequence[Sequence[Row]], *, published: bool, one_file: bool
) -> list[str]:
    """What is wrong with what readers see of a slice that nobody works on at the moment.

    :param allowed: the rows of the version before and of the one in the making: it must be one of them.
    :param published: whether there was a version before.
    :param one_file: whether both are one file, which is whole at any instant.
    """
    store, faults = Store(slice_path), []
    wanted = [list(rows) for rows in allowed]
    try:
        if published_dataset(slice_path).to_table().to_pylist() not in wanted:
            faults.append("published_dataset sees neither version")
    except FileNotFoundError as e:
        if published:
            faults.append(f"published_dataset: {e}")
    except Exception as e:
        faults.append(f"published_dataset: {type(e).__name__}: {e}")
    names = store.names()
    if versions.SUCCESS in names or one_file:
        try:
            table = _read_folder(store)
            if table is None:
                if versions.SUCCESS in names or published:
                    faults.append("there is no data file")
            elif table.to_pylist() not in wanted:
                faults.append(f"a reader of the folder sees neither version in {names}")
        except Exception as e:
            faults.append(f"a reader of the folder fails: {type(e).__name__}: {e}")
    return faults


def contents(slice_path: str) -> dict[str, str]:
    """SHA-256 of all files by name, those of the checkpoint folder aside."""
    store = Store(slice_path)
    found = {path[len(store.root) + 1 :] for path in store.fs.find(store.root)}
    names = sorted(n for n in found if not n.startswith("_checkpoint/"))
    return {n: hashlib.sha256(store.read(n) or b"").hexdigest() for n in names}


def _read_folder(store: Store) -> pa.Table | None:
    """As readers do that know nothing of the provider."""
    names = [n for n in store.names() if not n.startswith(("_", "."))]
    tables = [pq.read_table(io.BytesIO(store.read(n) or b"")) for n in names]
    return pa.concat_tables(tables) if tables else None


def _json(store: Store, name: str, faults: list[str]) -> Any:
    try:
        value = store.read_json(name)
    except ValueError as e:
        value = None
        faults.append(f"{name}: {e}")
    if value is None:
        faults.append(f"no {name}")
    return value


def _check_quarantine(aside: Sequence[Row], wanted: Sequence[Row], found: Findings) -> None:
    rows = [{k: v for k, v in row.items() if not k.startswith("__")} for row in aside]
    if rows != list(wanted):
        found.faults.append(f"quarantine holds {len(rows)} rows, not the {len(wanted)} that failed")
    if any(not row["__error"] for row in aside):
        found.faults.append("a row in quarantine has no error")


def _check_folder(store: Store, manifest: dict[str, Any], keep: int, found: Findings) -> None:
    number = manifest["number"]
    named = {f["path"] for f in [*manifest["files"], *manifest["quarantine"]]}
    named |= {versions.MANIFEST, versions.REPORT, versions.SUCCESS, versions.commit_name(number)}
    named.add(manifest["plan"])
    for old in range(max(1, number - keep), number):
        body = store.read_document(versions.commit_name(old))
        if body is not None:
            then = body["manifest"]
            named |= {versions.commit_name(old), then["plan"]}
            kept = f"{versions.VERSIONS}/{old:06}"
            named |= {f"{kept}/{f['path']}" for f in [*then["files"], *then["quarantine"]]}
    there = {path[len(store.root) + 1 :] for path in store.fs.find(store.root)}
    found.faults += [f"{name} is missing" for name in sorted(named - there)]
    for name in sorted(there - named):
        # What no reader takes for data and no later run takes for its own is litter.
        if name.startswith("_checkpoint/") or "_tmp-" in name:
            found.litter.append(name)
        else:
            found.faults.append(f"{name} is named by nothing")
    if store.is_local and "_checkpoint" in store.names() and not found.litter:
        found.litter.append("_checkpoint/")
    if versions.highest_commit(store) != number:
        found.faults.append(
            f"the manifest is of version {number}, the newest is {versions.highest_commit(store)}"
        )


def _check_report(
    report: dict[str, Any], manifest: dict[str, Any], promise: Promise, store: Store, faults: list[str]
) -> None:
    Report.model_validate(report)
    commit = store.read_document(versions.commit_name(manifest["number"]))
    if commit is None or json.loads(json.dumps(commit)) != {"manifest": manifest, "report": report}:
        faults.append("manifest and report are not those of the commit")
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
