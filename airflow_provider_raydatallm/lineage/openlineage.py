"""What OpenLineage is told of a run: datasets, statistics and a facet of the provider's own.

OpenLineage's listener calls the operator's methods at each start (a deferrable task has one at each resume
too, but none when it defers) and when the task ends, on the task object of the process where that happens. So
the operator says what it knows in `note_run`, both in `execute` and where it resumes. OpenLineage is imported
when a method is called, so that nothing else needs it. The facets `errorMessage` and `nominalTime` are the
listener's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

from airflow_provider_raydatallm.contract.spec import SliceJob

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_raydatallm.submit.packages import Package


@dataclass(frozen=True)
class SliceRun:
    """What is known of a run. `result` is the operator's `return_value`, None until there is one."""

    job: SliceJob
    ray_job_id: str | None = None
    result: Mapping[str, Any] | None = None


class SliceLineage:
    """Mixin: the methods by which an operator takes part in OpenLineage."""

    _slice_run: SliceRun | None = None

    if TYPE_CHECKING:

        def slice_job(self, context: Context) -> tuple[SliceJob, list[Package]]: ...

    def record_run(
        self, job: SliceJob, *, ray_job_id: str | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        """Keep what is known so far; the last word counts."""
        self._slice_run = SliceRun(job, ray_job_id, result)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        job, _ = self.slice_job(get_current_context())
        return _lineage(SliceRun(job))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Of a task that ended: succeeded or skipped, and also failed, as there is no `..._on_failure`."""
        return None if self._slice_run is None else _lineage(self._slice_run)


def _lineage(run: SliceRun) -> OperatorLineage[Any, Any]:
    from airflow_provider_raydatallm.lineage.facets import slice_lineage

    return slice_lineage(run.job, run.result, ray_job_id=run.ray_job_id)
