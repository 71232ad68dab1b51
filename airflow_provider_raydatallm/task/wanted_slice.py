"""What a sensor waits for, and whether it is there: one listing and a few small reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.result.errors import SliceError, problem_of
from airflow_provider_raydatallm.contract.slice_paths import SlicePaths, slice_paths

if TYPE_CHECKING:
    from airflow_provider_raydatallm.task.job.waiter import TaskLog


@dataclass(frozen=True)
class WantedSlice:
    """
    :param slice_path: the slice's folder in its table.
    :param metadata_path: of the table, where it is not beside it.
    :param min_rows: published rows, at least.
    :param max_quarantine: share of the slice's rows in quarantine, at most.
    """

    slice_path: str
    metadata_path: str | None = None
    min_rows: int = 0
    max_quarantine: float = 1.0

    def __str__(self) -> str:
        enough = f", with at least {self.min_rows:,} rows" if self.min_rows else ""
        if self.max_quarantine < 1:
            enough += f", with at most the share of {self.max_quarantine:g} in quarantine"
        return f"{self.slice_path} to be published{enough} (metadata: {self._paths.metadata})"

    @property
    def _paths(self) -> SlicePaths:
        return slice_paths(self.slice_path, self.metadata_path)

    def look(self, log: TaskLog) -> dict[str, Any] | None:
        """Returns the report (JSON) of the published version; None while it is not there, or has not enough.

        :raises SliceError: when the metadata cannot be read and waiting does not help.
        """
        # Parsing a DAG file must not import what opens storage.
        from airflow_provider_raydatallm.processor.publish.published import published_report

        path = plain_text(self.slice_path)
        try:
            report = published_report(self._paths)
        except (OSError, SliceError) as e:
            if isinstance(e, SliceError) and e.kind != "transient":  # such as a package that is missing here
                raise
            log.warning("Cannot look at %s now: %s", path, problem_of(e).text)
            return None
        if isinstance(report, str):
            log.info("%s", plain_text(report))
            return None
        counts = report.counts
        if counts.succeeded < self.min_rows:
            log.info("%s has %d rows; %d are wanted", path, counts.succeeded, self.min_rows)
            return None
        if counts.quarantined / max(1, counts.planned) > self.max_quarantine:
            log.info(
                "%d of %d rows of %s are in quarantine, more than the share of %g",
                counts.quarantined, counts.planned, path, self.max_quarantine,
            )  # fmt: skip
            return None
        return report.model_dump(mode="json")
