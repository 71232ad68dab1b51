"""The published version is the one with the highest commit.

One run creates `_versions/commit-000003.json` with the manifest and the report; it is never replaced.
`_manifest.json`, `_report.json` and `_SUCCESS` derive from it for readers, and are written again when one is
missing. Imports only fsspec, for the Airflow side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.processor.storage import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.lease import CHECKPOINT

MANIFEST, REPORT, SUCCESS, VERSIONS = "_manifest.json", "_report.json", "_SUCCESS", "_versions"
#: Progress of the run that holds the lease.
PROGRESS = "_progress.json"

#: A checkpoint's folder name begins with the number of its version.
_CHECKPOINT_FOLDER = re.compile(r"v(\d{6})-")
_COMMIT = re.compile(r"commit-(\d{6,})\.json")


@dataclass(frozen=True)
class Version:
    """A published version of a slice."""

    version_number: int
    manifest: dict[str, Any]
    report: dict[str, Any]

    @property
    def epoch(self) -> int:
        return int(self.manifest["epoch"])

    @property
    def data_files(self) -> list[dict[str, Any]]:
        return list(self.manifest["files"])

    @property
    def files(self) -> list[dict[str, Any]]:
        """Data files and quarantine files."""
        return [*self.manifest["files"], *self.manifest["quarantine"]]

    def to_report(self, outcome: str) -> Report:
        return Report.model_validate({**self.report, "outcome": outcome})


def commit_name(number: int) -> str:
    return f"{VERSIONS}/commit-{number:06}.json"


def plan_name(number: int, tag: str) -> str:
    """File of a version's plan, read by a later version that takes over its rows. `tag`: of its seal."""
    return f"{VERSIONS}/plan-{number:06}-{tag}.json"


def highest_commit(store: Store) -> int:
    """The number of the newest commit; 0 when there is none."""
    return max((int(m[1]) for n in store.names(VERSIONS) if (m := _COMMIT.fullmatch(n))), default=0)


def epoch(store: Store) -> int:
    """The lease epoch of the newest commit; 0 when there is none that can be read."""
    number = highest_commit(store)
    try:
        body = store.read_document(commit_name(number)) if number else None
    except CorruptFileError:
        body = None
    return int(body["manifest"]["epoch"]) if body else 0


def newest_version(store: Store, *, ignore_damage: bool = False) -> Version | None:
    """Returns the published version, or None.

    :raises SliceError: when its commit is damaged, or the folder holds files of another program.
    """
    number = highest_commit(store)
    if number:
        try:
            body = store.read_document(commit_name(number))
        except CorruptFileError as e:
            if ignore_damage:
                return None
            raise SliceError(
                f"{e}: the published version is unknown. Restore that file, or set force_rerun=True to "
                "answer the slice again",
                kind="input",
            ) from e
        if body is not None:
            return Version(number, body["manifest"], body["report"])
    names = store.names()
    foreign = [n for n in names if not n.startswith(("_", "."))]
    if foreign and CHECKPOINT not in names and VERSIONS not in names:
        raise SliceError(
            f"{store.url} holds {foreign[0]!r} ({len(foreign)} file(s)), which this provider did not "
            "publish: choose another output_path, or empty that folder",
            kind="input",
        )
    return None


def files_are_intact(store: Store, version: Version) -> bool:
    """Whether all data files of the version exist with their published sizes."""
    sizes = {f.name: f.size for f in store.files()}
    return all(sizes.get(f["path"]) == f["bytes"] for f in version.data_files)


def is_complete(store: Store, version: Version) -> bool:
    """Whether everything that derives from the commit exists, and its checkpoint is gone."""
    names = set(store.names())
    return (
        SUCCESS in names
        and _holds(store, MANIFEST, version.manifest)
        and _holds(store, REPORT, version.report)
        and not (CHECKPOINT in names and _old_checkpoints(store, version.version_number))
    )


def _holds(store: Store, name: str, value: dict[str, Any]) -> bool:
    try:
        return bool(store.read_json(name) == value)
    except ValueError:
        return False


def _old_checkpoints(store: Store, number: int) -> list[str]:
    """Checkpoint folders of versions up to the published one."""
    matches = ((name, _CHECKPOINT_FOLDER.match(name)) for name in store.names(CHECKPOINT))
    return [f"{CHECKPOINT}/{name}" for name, match in matches if match and int(match[1]) <= number]


def remove_checkpoints(store: Store, number: int) -> None:
    """Removes the checkpoints of versions up to the published one."""
    for folder in _old_checkpoints(store, number):
        store.remove(folder)
