"""Lets a slice pass its gates, or ends the run before anything is published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.gate import Gate
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.gates.facts import Facts
from airflow_provider_raydatallm.processor.gates.verdicts import judge
from airflow_provider_raydatallm.processor.store.table_versions import newest_versions

logger = logging.getLogger(__name__)


def pass_gates(
    job: SliceJob,
    slice_: Facts,
    on_verdicts: Callable[[Sequence[GateVerdict]], None] = lambda verdicts: None,
) -> tuple[GateVerdict, ...] | None:
    """Returns what the gates said; None where the job has none.

    :param slice_: of the version that is to be published.
    :param on_verdicts: hears of them, whatever they are.
    :raises SliceError: when one says that it may not be, or the slices before it cannot be read now.
    """
    gates = job.quality.gates
    if job.trial_name is not None:  # its number of rows is chosen
        gates = tuple(gate for gate in gates if gate.of != "rows")
    if not gates:
        return None
    before = {same: _slices_before(job, gates, same) for same in {gate.same for gate in gates}}
    verdicts = [judge(gate, slice_, before[gate.same]) for gate in gates]
    # Whatever else the gates say by now: others may have been published meanwhile.
    if slice_.rejections and any(gate.then == "hold" for gate in gates):
        verdicts.append(
            GateVerdict(
                of="rejections", value=slice_.rejections, figure=slice_.rejections, max=0, verdict="held"
            )
        )
    for verdict in verdicts:
        if verdict.verdict in ("warned", "unknown", "held"):
            logger.warning("gate of slice %r: %s", job.slice_key, verdict)
    on_verdicts(verdicts)
    if failed := [verdict for verdict in verdicts if verdict.verdict == "failed"]:
        raise _stopped(job, failed)
    return tuple(verdicts)


def _slices_before(job: SliceJob, gates: Sequence[Gate], same: str | None) -> list[Facts]:
    """Returns as many as one of these gates compares with."""
    most = max(gate.against or 0 for gate in gates if gate.same == same)
    return list(islice(_known_before(job, same), most)) if most else []


def _known_before(job: SliceJob, same: str | None) -> Iterator[Facts]:
    address, slice_format = job.address, job.source.slice_format
    for version in newest_versions(address, slice_format, before=True, same_weekday=same == "weekday"):
        try:
            yield Facts.of_commit(version.body)
        except ValueError:
            key = version.body.get("slice_key")
            logger.warning("the commit of slice %r counts what no run can: no slice is compared with it", key)


def _stopped(job: SliceJob, failed: list[GateVerdict]) -> SliceError:
    return SliceError(
        f"slice {job.slice_key!r} did not pass: {'; '.join(map(str, failed))}",
        kind="input",
        advice=(
            'To look at its rows, give the gate "then": "hold" and clear the task: a person decides then',
            "Another limit in quality.gates judges them again, too, and no answered row is asked again",
        ),
    )
