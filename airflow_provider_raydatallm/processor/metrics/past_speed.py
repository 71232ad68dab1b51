"""Throughput of earlier slices of a table, from their reports."""

from __future__ import annotations

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sizing.facts import PastThroughput
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import newest_version

#: How many published slices of the table are read, newest keys first.
_SLICES = 20


def newest_throughput(job: SliceJob) -> PastThroughput | None:
    """Returns that of the newest slice of the same table with the same answers."""
    fs, path = open_fs(job.paths.metadata)
    try:
        entries = fs.ls(path.rstrip("/").rpartition("/")[0], detail=True)
    except OSError:  # it does not exist, or may not be listed
        return None
    folders = sorted((e["name"].rstrip("/") for e in entries if e["type"] == "directory"), reverse=True)
    for folder in folders[:_SLICES]:
        try:
            version = newest_version(Store(fs.unstrip_protocol(folder)))
            if version is None or version.answers != answers_fingerprint(job):
                continue
            report = version.body["report"]
            rate, start = report["throughput"]["rows_per_s"], report["seconds"]["engine_start"]
            workers = report["balance"]["workers"] or 1
            inferred_share = 1 - (report["counts"].get("cached") or 0) / (report["counts"]["planned"] or 1)
        except (OSError, SliceError, KeyError, TypeError):
            continue
        if rate and inferred_share and start is not None:
            return PastThroughput(report["slice_key"], rate * inferred_share / workers, start)
    return None
