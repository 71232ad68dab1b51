"""The policies: whether a slice is finished, and if not, which version to build and why."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Literal

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint, changes_since, fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.listing import Listing
from airflow_provider_raydatallm.processor.publish.published import answers_same_question, needs_rerun
from airflow_provider_raydatallm.processor.publish.slice_checks import (
    refuse_another_name,
    refuse_other_instant,
)
from airflow_provider_raydatallm.processor.publish.version_numbers import next_number
from airflow_provider_raydatallm.processor.ray_runtime.own_task import own_task
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, asked_before
from airflow_provider_raydatallm.processor.store.marks import names_task
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Commits, Version, task_name

logger = logging.getLogger(__name__)

#: Why a version is built: `extend`, `retry` and `republish` take over the rows of the one before it, to add
#: files, to ask those in quarantine again, or to publish other columns beside the answers; `rebuild` replaces
#: a damaged one.
Mode = Literal["new", "rebuild", "forced", "extend", "retry", "republish"]


#: Modes that take over published rows.
_CARRY_OVER: tuple[Mode, ...] = ("extend", "retry", "republish")
#: Slices that are looked at for what a table's rows answer.
_MOST_SLICES = 20


def refuse_another_task(job: SliceJob, task: Mapping[str, str] | None) -> None:
    """A task that was copied with its output_path would publish among the rows of the first one.

    :param task: the Airflow task that the job is of, if any.
    :raises SliceError: when the table names other tasks, which ask something else, unless it may be replaced.
    """
    of_table = job.table_paths
    if task is None or job.rerun.on_config_change == "recompute":
        return
    if names_task(Store(of_table.staging), task) is not False:
        return
    for metadata in islice(_metadata_of_slices(job.address), _MOST_SLICES):
        # A commit that cannot be read is for the runs of its slice to tell.
        version = next(Commits.list(metadata).versions(below=sys.maxsize), None)
        if version is None:
            continue
        before = asked_before(metadata, version.plan)
        if before is not None and (changes := changes_since(before, job)):
            raise SliceError(
                f"{of_table.table} is the table of {version.task_name or 'another task'}, which asks "
                f"something else: {', '.join(changes)}",
                kind="input",
                advice=(
                    f"Give {task_name(task)} an output_path of its own",
                    "If it takes that table over, set rerun.on_config_change='recompute' for its first run",
                ),
            )
        return


def _metadata_of_slices(of: SliceAddress) -> Iterator[Store]:
    """Yields the folders of the slice, and of the table's others, the last key first."""
    yield Store(of.paths.metadata)
    if not of.has_tables_for_slices:
        keys = [key for key in Store(of.table_paths.metadata).names() if not key.startswith("_")]
        yield from (Store(f"{of.table_paths.metadata}/{key}") for key in sorted(keys, reverse=True))


def report_if_current(
    job: SliceJob, listing: Listing, version: Version | None, last_seen_version: int
) -> Report | None:
    """Returns the published report, when this run would publish the same.

    :param last_seen_version: the newest version when this run began: a run that this one waited for built the
        later ones.
    """
    if version is None:
        refuse_another_name(job.address, job.slice_instant, job.other_slice_keys)
        return None
    refuse_other_instant(job, version)
    if not answers_same_question(version, job, listing):
        return None
    if version.number > last_seen_version:
        return version.to_report(job.slice_path, "attached")
    return None if needs_rerun(job, version) else version.to_report(job.slice_path, "unchanged")


def next_version(
    job: SliceJob,
    listing: Listing,
    folders: SliceFolders,
    version: Version | None,
    base: int,
    *,
    adapters: str = "",
) -> tuple[int, Checkpoint]:
    """Returns the number of the version to build, and its checkpoint.

    :param version: the published version; None when it is damaged, too.
    :param base: its number; 0 when there is none.
    :param adapters: digest of the adapters' content; "" where the job has none.
    :raises SliceError: when something else is published, or half finished, and the policy is to fail.
    :raises NumberTakenError: when a newer version appeared.
    """
    number = next_number(folders, base)
    mode = _mode(job, listing, folders, version, is_damaged=base > 0)
    asked = _asked(job, adapters)
    if version is not None and mode in _CARRY_OVER and adapters and not version.question.startswith(asked):
        mode = _mode_of_replaced_adapters(job, version)
    carries_over = mode in _CARRY_OVER
    checkpoint = Checkpoint(
        folders.metadata,
        question(job, mode, base, adapters=adapters),
        version if carries_over else None,
        is_forced=mode == "forced",
    )
    planned = checkpoint.planned_inputs()
    has_changed = planned and listing.hash not in planned
    if has_changed and job.rerun.on_input_change == "fail" and checkpoint.has_finished_rows():
        raise SliceError(
            f"slice {job.slice_key!r} is half finished, and {job.resolved_input_path} changed since",
            kind="input",
            advice="Set rerun.on_input_change='recompute' or 'extend' to continue with what it holds now: "
            "the finished rows of unchanged files are kept",
        )
    return number, checkpoint


def _mode(
    job: SliceJob, listing: Listing, folders: SliceFolders, version: Version | None, *, is_damaged: bool
) -> Mode:
    if version is None:
        return "forced" if job.rerun.force else "rebuild" if is_damaged else "new"
    same_question = version.fingerprint == fingerprint(job)
    same_answers = version.answers == answers_fingerprint(job)
    same_input = version.input_hash == listing.hash
    if not same_question and job.rerun.on_config_change == "fail":
        raise _published_with_another(job, folders, version, same_answers=same_answers)
    if not same_input and job.rerun.on_input_change == "fail":
        published = version.body["input"]
        raise SliceError(
            f"slice {job.slice_key!r} is published from other input than {job.resolved_input_path} now "
            f"holds (then {published['files']} file(s) of {published['rows']:,} rows; now "
            f"{len(listing.files)})",
            kind="input",
            advice="Set rerun.on_input_change='recompute' to replace it, or 'extend' to add what is new",
            code="published",
        )
    if job.rerun.force:
        return "forced"
    if same_answers and same_input:
        return "retry" if same_question else "republish"
    return "extend" if same_answers and job.rerun.on_input_change == "extend" else "new"


def _published_with_another(
    job: SliceJob, folders: SliceFolders, version: Version, *, same_answers: bool
) -> SliceError:
    """What to say of a slice whose version was published with another configuration."""
    before = asked_before(folders.metadata, version.plan)
    if same_answers:
        changed = "the columns beside the answers changed"
    elif before is None:
        changed = "model, prompt, sampling, schema, code or rows changed"
    else:
        changed = ", ".join(changes_since(before, job)) or "the provider's way to ask changed"
    cost = ", which asks the model nothing where requests read the same" if same_answers else ""
    task = own_task()
    publisher = version.task_name
    is_own = task is None or publisher in (None, task_name(task))
    by = "" if is_own else f" by {publisher}"
    advice = "Undo the change" if is_own else "Give this task an output_path of its own"
    return SliceError(
        f"slice {job.slice_key!r} is published{by} with another configuration: {changed}",
        kind="input",
        advice=(advice, f"Or set rerun.on_config_change='recompute' to replace it{cost}"),
        code="published",
    )


def _mode_of_replaced_adapters(job: SliceJob, version: Version) -> Mode:
    """Rows of one adapter and of another that took its place would be published together."""
    if job.rerun.on_config_change == "fail":
        raise SliceError(
            f"slice {job.slice_key!r} (version {version.number}) was answered with an adapter that was "
            "replaced in its folder since, and rows of both would be published together",
            kind="input",
            advice="Set rerun.on_config_change='recompute' to answer all rows again, or give the new adapter "
            "a folder of its own",
        )
    return "new"


def question(job: SliceJob, mode: Mode, base: int, *, adapters: str = "") -> str:
    """Names the checkpoint whose rows answer what this run asks: the fingerprint, with the adapters' content,
    and where rows that have an answer are asked once more, the number of the version that holds it."""
    name = _asked(job, adapters)
    return name if mode in ("new", "extend", "republish") else f"{name}-{mode}-{base:06}"


def _asked(job: SliceJob, adapters: str) -> str:
    """The rows of a half-finished slice do not count once an adapter is replaced in its folder."""
    asked = answers_fingerprint(job)
    return hashlib.sha256(f"{asked} {adapters}".encode()).hexdigest()[:16] if adapters else asked
