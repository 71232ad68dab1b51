"""What is published: the version with the highest commit.

`_versions/commit-000003.json` is created by one and never replaced, and holds the manifest and the report.
`_manifest.json`, `_report.json` and `_SUCCESS` derive from it: they are there for readers, and are written
again when they are missing. Only fsspec is imported: the Airflow side asks this too.
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
#: How the run that is at work is getting on.
PROGRESS = "_progress.json"

#: A checkpoint's folder begins with the number of its version.
_RUN_FOLDER = re.compile(r"v(\d{6})-")
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
        """Data files and those of the quarantine."""
        return [*self.manifest["files"], *self.manifest["quarantine"]]

    def to_report(self, outcome: str) -> Report:
        return Report.model_validate({**self.report, "outcome": outcome})


def commit_name(number: int) -> str:
    return f"{VERSIONS}/commit-{number:06}.json"


def plan_name(number: int, tag: str) -> str:
    """The plan that a version was made by, for those that build on it. `tag`: its seal's."""
    return f"{VERSIONS}/plan-{number:06}-{tag}.json"


def highest_commit(store: Store) -> int:
    """The number of the newest commit; 0 when there is none."""
    return max((int(m[1]) for n in store.names(VERSIONS) if (m := _COMMIT.fullmatch(n))), default=0)


def epoch(store: Store) -> int:
    """The epoch of the lease under which the newest commit was made; 0 when there is none that can be
    read."""
    number = highest_commit(store)
    try:
        body = store.read_document(commit_name(number)) if number else None
    except CorruptFileError:
        body = None
    return int(body["manifest"]["epoch"]) if body else 0


def newest_version(store: Store, *, ignore_damage: bool = False) -> Version | None:
    """The version that is published here, or None.

    :raises SliceError: when its commit is damaged, or the folder holds data files that no run of this
        provider put there.
    """
    number = highest_commit(store)
    if number:
        try:
            body = store.read_document(commit_name(number))
        except CorruptFileError as e:
            if ignore_damage:
                return None
            raise SliceError(
                f"{e}: what is published cannot be told. Restore that file, or set force_rerun=True to "
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
    """Whether the version's data files are there, with the sizes that they were published with."""
    sizes = {f.name: f.size for f in store.files()}
    return all(sizes.get(f["path"]) == f["bytes"] for f in version.data_files)


def is_complete(store: Store, version: Version) -> bool:
    """Whether everything that derives from the commit is there too, and what it was made from is gone."""
    names = set(store.names())
    return (
        SUCCESS in names
        and _holds(store, MANIFEST, version.manifest)
        and _holds(store, REPORT, version.report)
        and not (CHECKPOINT in names and _left_over(store, version.version_number))
    )


def _holds(store: Store, name: str, value: dict[str, Any]) -> bool:
    try:
        return bool(store.read_json(name) == value)
    except ValueError:
        return False


def _left_over(store: Store, number: int) -> list[str]:
    """Folders of versions up to the published one, which nobody needs any more."""
    found = ((name, _RUN_FOLDER.match(name)) for name in store.names(CHECKPOINT))
    return [f"{CHECKPOINT}/{name}" for name, match in found if match and int(match[1]) <= number]


def remove_checkpoints(store: Store, number: int) -> None:
    """Remove what was kept for versions up to the published one."""
    for folder in _left_over(store, number):
        store.remove(folder)
