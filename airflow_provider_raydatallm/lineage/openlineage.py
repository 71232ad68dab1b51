"""Mixin by which an operator reports its lineage: datasets, statistics and the provider's own facet.

OpenLineage's listener calls these methods on the task object of each process: at every start (a deferrable
task starts again at each resume), and when the task ends, but not when it defers. So the operator calls
`record_run` both in `execute` and where it resumes. OpenLineage is optional and imported only when a method
is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_raydatallm.contract.result.failure import Failure
    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
    from airflow_provider_raydatallm.submit.packages import Package


class SliceLineage:
    _recorded_run: dict[str, Any] | None = None

    if TYPE_CHECKING:

        def slice_job(self, context: Context) -> tuple[SliceJob, list[Package]]: ...

    def record_run(
        self, job: SliceJob, *, ray_job_id: str | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        """Stores what is known so far, in place of an earlier call's values.

        :param result: the operator's `return_value`, once there is one.
        """
        self._recorded_run = {"job": job, "ray_job_id": ray_job_id, "result": result}

    def record_failure(self, failure: Failure) -> None:
        """Stores why the run failed; of one that failed before it knew its slice, there is no lineage."""
        if self._recorded_run is not None:
            self._recorded_run["failure"] = failure

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_raydatallm.lineage.facets import slice_lineage

        job, _ = self.slice_job(get_current_context())
        return slice_lineage(job, None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Called for tasks that succeeded, were skipped, or failed: there is no `..._on_failure`."""
        from airflow_provider_raydatallm.lineage.facets import slice_lineage

        return None if self._recorded_run is None else slice_lineage(**self._recorded_run)
