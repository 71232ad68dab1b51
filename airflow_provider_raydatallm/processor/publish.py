"""Publishing a slice: the input is read again, the answers are placed beside it by position, and one put
shows it to readers.

Order, types and memory are right by construction: nothing is sorted or collected. Invariants: a slice never
publishes short; `_SUCCESS` is the last file written and the first removed; while it is there, what
`_manifest.json` names is what is there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm import __version__
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.fragments import Fragments
from airflow_provider_raydatallm.processor.plan import Plan, folder_column
from airflow_provider_raydatallm.processor.store import Store
from airflow_provider_raydatallm.spec import Report, SliceJob

MANIFEST, REPORT, SUCCESS = "_manifest.json", "_report.json", "_SUCCESS"
CHECKPOINT, PUBLISHING = "_checkpoint", "_publishing"
PART = "part-00000.parquet"

_ROW_GROUP_ROWS = 65_536
_ROW_GROUP_BYTES = 64 << 20


def published(store: Store) -> dict[str, Any] | None:
    """The manifest of the slice that is published here, or None.

    :raises SliceError: when the folder holds data files that no run of this provider put there.
    """
    names = store.names()
    manifest = store.read_json(MANIFEST) if MANIFEST in names else None
    if manifest is not None and {SUCCESS, REPORT} <= set(names):
        return dict(manifest)
    foreign = [n for n in names if not n.startswith(("_", "."))]
    if foreign and manifest is None and PUBLISHING not in names:
        raise SliceError(
            f"{store.url} holds {foreign[0]!r} ({len(foreign)} file(s)), which this provider did not "
            "publish: choose another output_path, or empty that folder"
        )
    return None


def check_columns(job: SliceJob, plan: Plan, fields: list[pa.Field]) -> None:
    """:raises SliceError: when the answer columns cannot stand beside the input's, or the whole cannot be
    Parquet."""
    names = [f.name for f in fields]
    if taken := [n for n in names if n in plan.columns]:
        raise SliceError(
            f"the answer column {taken[0]!r} is also a column of the input: choose another output_column"
        )
    if (folder := folder_column(job.slice_path)) in names:
        raise SliceError(
            f"the answer column {folder!r} is also the slice folder's: choose another output_column"
        )
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([*plan.schema, *fields])).close()
    except pa.ArrowException as e:
        raise SliceError(
            f"the slice's columns cannot be written as Parquet: {e}. Leave them out with columns="
        ) from e


def write_part(store: Store, job: SliceJob, plan: Plan, fragments: Fragments) -> dict[str, Any]:
    """Write the slice's rows, in input order, as one Parquet file, and put it in one step. Returns its
    manifest entry."""
    fields = fragments.fields
    check_columns(job, plan, fields)
    schema = pa.schema([*plan.schema, *fields])
    plan.check_unchanged()
    with tempfile.TemporaryDirectory(prefix="ray-llm-publish-") as folder:
        path = Path(folder) / PART
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            pending: list[pa.Table] = []
            for index, unit in enumerate(plan.units):
                answers = fragments.of_unit(index, unit.rows)
                offset = 0
                for table in plan.read(unit):
                    beside = answers.slice(offset, table.num_rows)
                    offset += table.num_rows
                    pending.append(pa.Table.from_arrays([*table.columns, *beside.columns], schema=schema))
                    if _large(pending):
                        writer.write_table(pa.concat_tables(pending))
                        pending = []
            if pending or not plan.units:
                writer.write_table(pa.concat_tables(pending) if pending else schema.empty_table())
        plan.check_unchanged()
        begin(store)
        store.put_file(PART, path)
        return {"path": PART, "rows": plan.rows, "bytes": path.stat().st_size, "sha256": _sha256(path)}


def begin(store: Store) -> None:
    """From here until `_SUCCESS` is back, readers that wait for it see no slice, and the next run knows whose
    files these are."""
    store.put_bytes(PUBLISHING, b"")
    store.remove(SUCCESS)


def write_manifest(
    store: Store, job: SliceJob, plan: Plan, files: list[dict[str, Any]], report: Report
) -> None:
    """Write what derives from the published files; `_SUCCESS` last."""
    manifest = {
        "version": 1,
        "slice_key": job.slice_key,
        "slice_instant": job.slice_instant,
        "fingerprint": job.fingerprint(),
        "input": {
            "path": job.resolved_input_path,
            "files": plan.files,
            "rows": plan.rows,
            "hash": plan.input_hash,
        },
        "model_source": job.model_source,
        "output_column": job.output_column,
        "files": files,
        "published_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "provider_version": __version__,
    }
    store.put_json(MANIFEST, manifest)
    store.put_json(REPORT, report.model_dump(mode="json"))
    store.put_bytes(SUCCESS, b"")
    store.remove(PUBLISHING)


def _large(tables: list[pa.Table]) -> bool:
    rows, size = sum(t.num_rows for t in tables), sum(t.nbytes for t in tables)
    return bool(rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES)


def _sha256(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
