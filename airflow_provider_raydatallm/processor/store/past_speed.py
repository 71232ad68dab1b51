"""Throughput of earlier slices of a table, from their reports."""

from __future__ import annotations

import json

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.sizing.facts import PastThroughput
from airflow_provider_raydatallm.processor.storage import open_fs

#: How many published slices of the table are read, newest keys first.
_SLICES = 20


def newest_throughput(job: SliceJob) -> PastThroughput | None:
    """Returns that of the newest slice of the same table with the same fingerprint."""
    fs, path = open_fs(job.slice_path)
    table = path.rstrip("/").rpartition("/")[0]
    try:
        folders = [f["name"] for f in fs.ls(table, detail=True) if f["type"] == "directory"]
    except OSError:  # it does not exist, or may not be listed
        return None
    for folder in sorted(folders, reverse=True)[:_SLICES]:
        try:
            report = json.loads(fs.cat_file(f"{folder.rstrip('/')}/_report.json"))
            if report["fingerprint"] != fingerprint(job):
                continue
            rate, start = report["throughput"]["rows_per_s"], report["seconds"]["engine_start"]
            workers = report["balance"]["workers"] or 1
            inferred_share = 1 - (report["counts"].get("cached") or 0) / (report["counts"]["planned"] or 1)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if rate and inferred_share and start is not None:
            return PastThroughput(report["slice_key"], rate * inferred_share / workers, start)
    return None
