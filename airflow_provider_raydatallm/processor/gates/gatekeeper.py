"""Lets a slice pass its gates, or ends the run before anything is published."""

from __future__ import annotations

import logging
from itertools import islice

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.gates.judge import judge
from airflow_provider_raydatallm.processor.store.table_versions import newest_versions

logger = logging.getLogger(__name__)


def pass_gates(job: SliceJob, report: Report) -> Report:
    """Returns the report with what the gates said.

    :param report: of the version that is to be published.
    :raises SliceError: when one says that it may not be.
    """
    gates = job.quality.gates
    if not gates:
        return report.model_copy(update={"gates": None})  # those that it had when it was staged
    slices = max(gate.against or 0 for gate in gates)
    before = islice(newest_versions(job.paths.metadata, before=True), slices)
    verdicts = judge(gates, report.model_dump(mode="json"), [version.body["report"] for version in before])
    for verdict in verdicts:
        if verdict.verdict in ("warned", "unknown", "held"):
            logger.warning("gate of slice %r: %s", job.slice_key, verdict)
    if failed := [verdict for verdict in verdicts if verdict.verdict == "failed"]:
        raise _stopped(job, failed)
    return report.model_copy(update={"gates": tuple(verdicts)})


def _stopped(job: SliceJob, failed: list[GateVerdict]) -> SliceError:
    return SliceError(
        f"slice {job.slice_key!r} did not pass: {'; '.join(map(str, failed))}",
        kind="input",
        advice=(
            "Look at its rows before you change a limit: what is wrong with them is paid already",
            'Another limit in quality.gates, or "then": "hold", judges them again, and pays for none',
        ),
    )
