"""A slice's entry in the index that Airflow's UI reads: small, complete, and read without any storage.

A task writes it twice, when it knows its slice and when it ends, as an XCom beside the task instance. The
state in between is Airflow's own: running, failed. XComs end with their run (`airflow db clean`), so
the finished entry goes to the state store of the task's asset, too, where Airflow has one (3.3) and the task
declares an asset in `outlets`: that is kept until the asset is gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pydantic
from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetRef

from airflow_provider_raydatallm.contract.result.probes import GoldenFigures, JudgeFigures, RepeatFigures
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.gate import PROBES
from airflow_provider_raydatallm.task import own_xcom

if TYPE_CHECKING:
    from airflow.sdk import Context

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

log = logging.getLogger(__name__)

#: Key of the XCom, and the first part of keys in an asset's state store.
INDEX_KEY = "ray_llm_slice"
#: Raised when a field's meaning changes.
FORMAT = 1
#: Of an entry, as JSON: one that would be longer lacks what it counts by label and reason.
ENTRY_CHARACTERS = 16_384
#: Of Airflow's keys.
_KEY_CHARACTERS = 512


class SliceFigures(pydantic.BaseModel):
    """
    :param timezone: of the schedule, in which a date is a slice's key.
    :param trial: its name, when this was one: it says nothing of the slice itself.
    :param outcome: of the task; None while it runs, and when it failed. The following are then None or empty.
    :param labels: how many of the published rows have each label.
    :param quarantine_reasons: how many rows in quarantine have each type of error.
    :param golden, repeat, judge: what was learnt of the answers by asking more.
    :param gates: what they said.
    :param gpu_seconds: seconds from the engine's start to its last row, times the GPUs that it held.
    :param gpus_held: of a cluster that was made for the task (`GpusHeld`).
    :param cost: of them, at the price that the run knew.
    """

    slice_key: str
    timezone: str | None = None
    trial: str | None = None
    model: str | None = None
    outcome: str | None = None
    published_version: int | None = None
    fingerprint: str | None = None
    counts: dict[str, int] = {}
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    rows_per_s: float | None = None
    tokens_per_s: float | None = None
    gpu_seconds: float | None = None
    gpus_held: dict[str, float] | None = None
    cost: float | None = None
    gpu_mean: float | None = None
    labels: dict[str, int] | None = None
    quarantine_reasons: dict[str, int] | None = None
    golden: GoldenFigures | None = None
    repeat: RepeatFigures | None = None
    judge: JudgeFigures | None = None
    gates: list[GateVerdict] | None = None
    advice: list[str] = []


class SliceEntry(SliceFigures):
    """
    :param paths: where the slice's files lie (`SlicePaths`), for a server that may read them.
    :param staged_version: name of the version that waits for a person.
    """

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    paths: dict[str, str]
    staged_version: str | None = None
    ray_job_id: str | None = None

    @classmethod
    def of(cls, job: SliceJob, result: Mapping[str, Any] | None = None) -> SliceEntry:
        """:param result: the task's `return_value`, once it has one."""
        identity = {
            "slice_key": job.slice_key,
            "timezone": job.slice_timezone,
            "paths": asdict(job.paths),
            "trial": job.trial_name,
            "model": job.model_source,
        }
        return cls.model_validate({**identity, **(_figures(result) if result is not None else {})})

    @classmethod
    def parse(cls, value: Any) -> SliceEntry | None:
        """Returns None for what a newer provider, or somebody else, wrote."""
        try:
            entry = cls.model_validate(value)
            entry.model_dump_json()  # not of half a character, of which JSON can be made, but no answer
        except (ValueError, OverflowError, RecursionError):  # pydantic's own are ValueErrors
            return None
        return entry if entry.format <= FORMAT else None


def write_entry(
    context: Context, outlets: Sequence[object], job: SliceJob, result: Mapping[str, Any] | None = None
) -> None:
    """Writes a task's entry. No failure here fails the task: the page lacks a line.

    :param result: the task's `return_value`, once it has one.
    """
    ti: Any = context["ti"]
    whole = SliceEntry.of(job, result)
    entry = whole.model_dump(mode="json", exclude_none=True)
    if len(whole.model_dump_json()) > ENTRY_CHARACTERS:
        entry = whole.model_dump(
            mode="json",
            exclude_none=True,
            exclude={"labels", "quarantine_reasons", *PROBES, "gates", "advice"},
        )
    stores: Any = context.get("asset_state_store")
    try:
        own_xcom.push(ti, INDEX_KEY, entry)
        # Which asset an alias stands for, Airflow knows only after the task.
        asset = next((o for o in outlets if isinstance(o, (Asset, AssetRef))), None)
        is_done = result is not None and result["outcome"] != "held"
        if stores is not None and asset is not None and is_done and job.source.max_rows is None:
            stores[asset].set(index_key(ti.dag_id, ti.task_id, job.slice_key), entry)
    except Exception as e:
        log.warning("Airflow's page does not show this run of the slice: %s", e)


def index_key(dag_id: str, task_id: str, slice_key: str) -> str:
    """The key of a slice in an asset's state store, which several tasks may share."""
    task = hashlib.sha256(f"{dag_id}\n{task_id}".encode()).hexdigest()[:12]
    key = f"{INDEX_KEY}/{task}/{slice_key}"
    if len(key) <= _KEY_CHARACTERS:
        return key
    return f"{INDEX_KEY}/{task}/sha256-{hashlib.sha256(slice_key.encode()).hexdigest()}"


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    def known(section: str) -> dict[str, Any]:
        return {k: v for k, v in (result.get(section) or {}).items() if isinstance(v, (int, float))}

    throughput, seconds = known("throughput"), known("seconds")
    rates = [throughput.get(f"{kind}_tokens_per_s") for kind in ("input", "output")]
    tokens_per_s = sum(filter(None, rates)) or None
    return {
        **{
            k: result.get(k)
            for k in ("outcome", "published_version", "staged_version", "fingerprint", "ray_job_id")
        },
        "counts": known("counts"),
        "tokens": known("tokens"),
        "seconds": seconds,
        "rows_per_s": throughput.get("rows_per_s"),
        "tokens_per_s": tokens_per_s,
        "gpu_seconds": result.get("gpu_seconds"),
        "gpus_held": known("gpus_held") or None,
        "cost": known("cost").get("total"),
        "gpu_mean": known("utilisation").get("gpu_mean"),
        "labels": result.get("labels"),
        "quarantine_reasons": result.get("quarantine_reasons"),
        **{name: result.get(name) for name in PROBES},
        "gates": result.get("gates"),
        "advice": list(result.get("advice") or ()),
    }
