"""Throughput of earlier slices of a table, from their reports."""

from __future__ import annotations

from itertools import islice

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint
from airflow_provider_raydatallm.contract.result.errors import StorageError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sizing.facts import PastThroughput
from airflow_provider_raydatallm.processor.store.table_versions import newest_versions

#: How many published slices of the table are read, newest keys first.
_SLICES = 20


def newest_throughput(job: SliceJob) -> PastThroughput | None:
    """Returns that of the newest slice of the same table with the same answers."""
    try:
        versions = list(islice(newest_versions(job.address, job.source.slice_format), _SLICES))
    except StorageError:
        return None
    for version in versions:
        try:
            if version.answers != answers_fingerprint(job):
                continue
            report = version.body["report"]
            rate, start = report["throughput"]["rows_per_s"], report["seconds"]["engine_start"]
            workers = report["balance"]["workers"] or 1
            inferred_share = 1 - (report["counts"].get("cached") or 0) / (report["counts"]["planned"] or 1)
        except (KeyError, TypeError):
            continue
        if rate and inferred_share and start is not None:
            return PastThroughput(report["slice_key"], rate * inferred_share / workers, start)
    return None
