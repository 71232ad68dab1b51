"""The folders that a task writes: what lies in them is never its input, on the first day as on the second."""

from __future__ import annotations

import re

from airflow_provider_raydatallm.contract.addresses import holds
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import METADATA, QUARANTINE, TRIAL, encode_slice_key
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.input.pattern import split_pattern
from airflow_provider_raydatallm.processor.storage.filesystem import resolve

_SLICE = "{slice}"


def check_output_is_outside(job: SliceJob) -> None:
    """:raises SliceError: when the input is a folder that holds the output: what is published would be
    answered again. A pattern skips it."""
    if split_pattern(job.resolved_input_path)[1]:
        return
    root = resolve(job.resolved_input_path)
    of_table = (address.replace(_SLICE, encode_slice_key(job.slice_key)) for address in _of_table(job))
    for address in (*of_table, *_of_slice(job)):
        if holds(root, resolve(address)):
            raise SliceError(
                f"{address}, where this task writes, lies inside the input {job.resolved_input_path}",
                kind="input",
                advice="Choose another output_path, or name the folder of the input itself",
            )


class OwnFolders:
    """Folders of the task's table, of any slice, with its metadata, quarantine and trials. Those that the
    input lies in are its input all the same (yesterday's output, say), but for the folders of this slice."""

    def __init__(self, job: SliceJob, root: str) -> None:
        """:param root: address of the input's root, as addresses are compared."""
        self._root = root.rstrip("/")
        of_table = (_pattern(address) for address in _of_table(job))
        patterns = [p for p in of_table if not re.match(f"{p}(/|$)", root)]
        patterns += [_pattern(address) for address in _of_slice(job)]
        self._is_own = re.compile("|".join(patterns)).fullmatch
        self.hold_root = any(re.match(f"{p}(/|$)", root) for p in patterns)

    def hold(self, names: tuple[str, ...]) -> bool:
        """Whether a folder below the root is one of them."""
        return self._is_own("/".join((self._root, *names))) is not None


def _pattern(address: str) -> str:
    return re.escape(resolve(address)).replace(re.escape(_SLICE), "[^/]+")


def _of_slice(job: SliceJob) -> list[str]:
    paths = job.paths
    return [paths.table, paths.metadata, paths.staging, paths.quarantine]


def _of_table(job: SliceJob) -> list[str]:
    """With `{slice}` where each slice is a table."""
    table = beside = job.output_table
    if job.has_tables_for_slices:
        table = job.output_path.rstrip("/")
        beside = table.rpartition("/")[0]
    given = [path for path in (job.publish.metadata_path, job.publish.quarantine_path) if path is not None]
    return [table, *(f"{beside}{suffix}" for suffix in (METADATA, QUARANTINE, TRIAL)), *given]
