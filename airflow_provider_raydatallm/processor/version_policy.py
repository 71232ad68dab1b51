"""The policies: whether a slice is finished, and if not, which version to build and why."""

from __future__ import annotations

import sys
from typing import Literal, get_args

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.listing import Listing
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.published import answers_same_question
from airflow_provider_raydatallm.processor.store.versions import Version

#: Why a version is built: `extend` and `retry` take over the rows of the previous one.
Mode = Literal["new", "forced", "extend", "retry"]


def find_published(job: SliceJob, store: Store) -> Version | None:
    """Returns the published version, if its files are intact."""
    version = versions.newest_version(store, ignore_damage=job.force_rerun)
    if version is not None and not versions.files_are_intact(store, version):
        print(
            f"warning: files of version {version.version_number} in {store.url} are missing or were changed: "
            "the slice is built again",
            file=sys.stderr,
            flush=True,
        )
        return None
    return version


def report_if_current(
    job: SliceJob, store: Store, listing: Listing, version: Version | None, last_seen_version: int
) -> Report | None:
    """Returns the published report, when this run would publish the same.

    :param last_seen_version: the newest version when this run began: a run that this one waited for built the
        later ones.
    """
    if version is None:
        return None
    published_instant = version.manifest.get("slice_instant")
    if published_instant and job.slice_instant and published_instant != job.slice_instant:
        raise SliceError(
            f"slice {job.slice_key!r} was published for {published_instant} and this run is for "
            f"{job.slice_instant}: two runs share "
            f"one key. slice_format {job.slice_format!r} is too coarse for this schedule; an hourly DAG "
            "needs '%Y-%m-%dT%H', say",
            kind="input",
        )
    if not answers_same_question(version, job, listing) or not versions.is_complete(store, version):
        return None
    if version.version_number > last_seen_version:
        return version.to_report("attached")
    return None if needs_rerun(job, version) else version.to_report("unchanged")


def needs_rerun(job: SliceJob, version: Version) -> bool:
    """Whether the job asks to run a finished slice again."""
    return job.force_rerun or (job.retry_quarantined and bool(version.manifest["quarantine"]))


def next_version(job: SliceJob, listing: Listing, store: Store, version: Version | None) -> tuple[int, Mode]:
    """Returns the number of the version to build, and why.

    :raises SliceError: when something else is published, or half finished, and the policy is to fail.
    """
    number = versions.highest_commit(store) + 1
    mode: Mode = "new"
    if version is None:
        # A run that died between its last part and its commit leaves the files of neither version intact.
        for started in get_args(Mode):
            if Checkpoint(store, number, fingerprint(job), started).is_sealed(listing.hash):
                return number, started
    if version is not None:
        same_question = version.manifest["fingerprint"] == fingerprint(job)
        same_input = version.manifest["input"]["hash"] == listing.hash
        if not same_question and job.on_config_change == "fail":
            raise SliceError(
                f"slice {job.slice_key!r} is published with another configuration (fingerprint "
                f"{version.manifest['fingerprint']}, now {fingerprint(job)}): model, prompt, sampling, "
                "schema or code changed. Set on_config_change='recompute' to replace it",
                kind="input",
            )
        if not same_input and job.on_input_change == "fail":
            published = version.manifest["input"]
            raise SliceError(
                f"slice {job.slice_key!r} is published from other input than {job.resolved_input_path} now "
                f"holds (then {published['files']} file(s) of {published['rows']:,} rows; now "
                f"{len(listing.files)}). "
                "Set on_input_change='recompute' to replace it, or 'extend' to add what is new",
                kind="input",
            )
        if same_question and not same_input and job.on_input_change == "extend":
            mode = "extend"
        elif same_question and same_input:
            mode = "forced" if job.force_rerun else "retry"
    checkpoint = Checkpoint(store, number, fingerprint(job), mode)
    planned = checkpoint.planned_inputs()
    has_changed = planned and listing.hash not in planned
    if has_changed and job.on_input_change == "fail" and checkpoint.has_fragments():
        raise SliceError(
            f"slice {job.slice_key!r} is half finished, and {job.resolved_input_path} changed since. Set "
            "on_input_change='recompute' or 'extend' to continue with what it holds now: the finished rows "
            "of unchanged files are kept",
            kind="input",
        )
    return number, mode
