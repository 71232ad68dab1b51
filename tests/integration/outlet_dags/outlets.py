"""DAGs whose tasks end like the operator's, for what Airflow and OpenLineage make of their ends.

Only the Ray part is left out: a task's report is given. The rest is what the operator calls.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator, CronPartitionTimetable
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.report import Counts, Report, Tokens
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMJobError
from airflow_provider_raydatallm.lineage.assets import check_emit_partition, record_asset_events
from airflow_provider_raydatallm.lineage.openlineage import SliceLineage


class Answered(SliceLineage, BaseOperator):
    """Ends as if a slice had been answered."""

    def __init__(
        self, *, outcome: str, slice_key: str = "2026-01-31", output_path: str = "s3://lake/enriched",
        deferrable: bool = False, emit_partition: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.outcome = outcome
        self.slice_key = slice_key
        self.output_path = output_path
        self.deferrable = deferrable
        self.emit_partition = emit_partition
        check_emit_partition(self.outlets, emit_partition)

    def slice_job(self, context: Any) -> tuple[SliceJob, list[Any]]:
        job = SliceJob.model_validate({
            "slice_key": self.slice_key, "input_path": "s3://lake/customers/ds={slice}/",
            "output_path": self.output_path, "model_source": "tiny", "prompt": "{a}",
        })  # fmt: skip
        return job, []

    def execute(self, context: Any) -> Any:
        job, _ = self.slice_job(context)
        self.record_run(job, ray_job_id="ray-1")
        if self.deferrable:
            self.defer(trigger=TimeDeltaTrigger(dt.timedelta(seconds=1)), method_name="execute_complete")
        return self._end(context, job)

    def execute_complete(self, context: Any, event: Any) -> Any:
        return self._end(context, self.slice_job(context)[0])

    def _end(self, context: Any, job: SliceJob) -> Any:
        self.log.info("ends in process %s", os.getpid())
        if self.outcome == "skip":
            raise AirflowSkipException("no rows")
        if self.outcome == "fail":
            raise RayLLMJobError("the engine died")
        report = Report(
            outcome=self.outcome,  # type: ignore[arg-type]
            slice_key=job.slice_key,
            output_path=job.slice_path,
            fingerprint=fingerprint(job),
            counts=Counts(planned=10, succeeded=9, quarantined=1),
            tokens=Tokens(input=100, output=20),
        )
        unchanged = self.outcome == "unchanged"
        result = report.to_xcom(
            report_path=job.paths.report(1), ray_job_id=None if unchanged else "ray-1", dashboard_url=None,
            queued=None, total=None,
        )  # fmt: skip
        self.record_run(job, result=result)
        record_asset_events(
            self.outlets, context["outlet_events"], job, result, partition_key=context.get("partition_key"),
            emit_partition=self.emit_partition,
        )  # fmt: skip
        return result


with DAG("outlets", schedule=None):
    Answered(task_id="published", outcome="published", outlets=[Asset("one"), Asset("s3://lake/two")])
    Answered(task_id="unchanged", outcome="unchanged", outlets=[Asset("one")])
    Answered(task_id="skipped", outcome="skip", outlets=[Asset("one")])
    Answered(task_id="failed", outcome="fail", outlets=[Asset("one")])
    Answered(task_id="deferred", outcome="published", deferrable=True, outlets=[Asset("one")])
    Answered(task_id="keyed", outcome="published", emit_partition=True, outlets=[Asset("one")])
    Answered(task_id="aliased", outcome="published", outlets=[AssetAlias("any")])
    Answered(task_id="aliased_new", outcome="published", output_path="/new", outlets=[AssetAlias("any")])
    Answered(task_id="referred", outcome="published", outlets=[Asset.ref(name="one"), Asset.ref(name="none")])
    Answered(task_id="plain", outcome="published")

with DAG("by_partition", schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d")):
    Answered(task_id="published", outcome="published", outlets=[Asset("one"), AssetAlias("any")])
    Answered(task_id="keyed", outcome="published", slice_key="b", emit_partition=True, outlets=[Asset("one")])

with DAG("consumer", schedule=[Asset("one"), Asset("enriched", uri="s3://lake/enriched")]):
    Answered(task_id="plain", outcome="published")
