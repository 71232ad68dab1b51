"""What differs between two published slices, or two versions of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_raydatallm.contract.result.report import MOST_LABELS
from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.versions import Version

#: Of a report, what people compare, by where it stands.
_FIGURES = (
    "counts.planned", "counts.succeeded", "counts.quarantined", "counts.truncated", "counts.degenerate",
    "tokens.input", "tokens.output", "throughput.rows_per_s", "throughput.tokens_per_s_per_gpu",
    "utilisation.gpu_mean", "seconds.engine_start", "seconds.inference", "seconds.publish",
    "cost.total", "cost.per_1000_rows",
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Two values of one figure; None where it was not measured."""

    name: str
    before: Any
    after: Any


def find_version(folders: SliceFolders, number: int | None) -> Version:
    """Returns a version whose files exist; the newest without a number.

    :raises FileNotFoundError: when there is none.
    """
    versions = kept_versions(folders)
    if not versions:
        raise FileNotFoundError(f"nothing is published in {folders.table.url}")
    for version in versions:
        if number in (None, version.number):
            return version
    numbers = ", ".join(str(v.number) for v in reversed(versions))
    raise FileNotFoundError(f"version {number} of {folders.table.url} is not kept; there are: {numbers}")


def compare_settings(before: Version, after: Version) -> list[Difference]:
    """The settings that differ, and of the figures all that either version has."""
    settings = [
        Difference(name, before.body.get(name), after.body.get(name))
        for name in ("model_source", "fingerprint", "output_column")
    ]
    figures = [Difference(name, _figure(before, name), _figure(after, name)) for name in _FIGURES]
    return [d for d in settings if d.before != d.after] + [
        d for d in figures if (d.before, d.after) != (None, None)
    ]


def compare_labels(before: Version, after: Version) -> list[Difference]:
    """The share of answered rows that have each label, the largest change first; none where answers are no
    labels, and None where a version's report does not tell."""
    shares, later = _label_shares(before), _label_shares(after)
    labels = dict.fromkeys([*(shares or ()), *(later or ())])
    differences = [Difference(label, _share(shares, label), _share(later, label)) for label in labels]
    return sorted(differences, key=lambda d: -abs((d.after or 0.0) - (d.before or 0.0)))


def _label_shares(version: Version) -> dict[str, float] | None:
    labels, rows = version.body["report"].get("labels"), _figure(version, "counts.succeeded")
    return {label: count / rows for label, count in labels.items()} if labels and rows else None


def _share(shares: dict[str, float] | None, label: str) -> float | None:
    names_all = shares is not None and len(shares) < MOST_LABELS
    return (shares or {}).get(label, 0.0 if names_all else None)


def _figure(version: Version, name: str) -> Any:
    section, _, field = name.partition(".")
    return (version.body["report"].get(section) or {}).get(field)
