"""A run's lineage as OpenLineage values. Needs `apache-airflow-providers-openlineage`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    base_subset_dataset,
    data_quality_assertions_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
)

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.lineage.table_names import Table, dataset_name, input_table, output_table

#: The key of the provider's facet in a run's facets.
SLICE_FACET = "rayDataLLM_slice"


@attrs.define
class RayDataLLMSliceRunFacet(RunFacet):
    """A run's slice, model, engine and result; None: not known (yet)."""

    sliceKey: str
    fingerprint: str
    model: str
    engine: str
    outcome: str | None = None
    #: Rows: planned, succeeded, quarantined, ... as in the report.
    counts: dict[str, int | None] | None = None
    #: Tokens: input, output, cached, saved.
    tokens: dict[str, int | None] | None = None
    #: Of the GPUs: total, per_1000_rows, per_million_tokens, gpu_hour_price.
    cost: dict[str, float | None] | None = None
    rayJobId: str | None = None
    reportPath: str | None = None
    #: Folder of the quarantined rows with their errors, if there are any.
    quarantinePath: str | None = None
    #: Of a run that failed: kind, sentence, advice, place, counts. No text of a row.
    failure: dict[str, Any] | None = None


def slice_lineage(
    job: SliceJob,
    result: Mapping[str, Any] | None,
    *,
    ray_job_id: str | None = None,
    failure: Failure | None = None,
) -> OperatorLineage[Any, Any]:
    """Returns the lineage of a run. Only a run that wrote the slice itself has statistics.

    :param result: the operator's `return_value`; None before the end, and for a run that failed.
    :param ray_job_id: of a run without a result.
    :param failure: of a run that failed.
    """
    input_facets: dict[str, InputDatasetFacet] = {}
    output_facets: dict[str, OutputDatasetFacet] = {}
    if result is not None and result["outcome"] in ("published", "empty"):
        counts = result["counts"]
        input_facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=counts["planned"]
        )
        output_facets["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=counts["succeeded"])
        )
        if gates := result.get("gates"):
            output_facets["dataQualityAssertions"] = cast("OutputDatasetFacet", _assertions(gates))
    source, target = input_table(job), output_table(job)
    if (subset := _subset(source)) is not None:
        input_facets["subset"] = base_subset_dataset.InputSubsetInputDatasetFacet(inputCondition=subset)
    if (subset := _subset(target)) is not None:
        output_facets["subset"] = base_subset_dataset.OutputSubsetOutputDatasetFacet(outputCondition=subset)
    return OperatorLineage(
        inputs=[InputDataset(*dataset_name(source.address), inputFacets=input_facets)],
        outputs=[OutputDataset(*dataset_name(target.address), outputFacets=output_facets)],
        run_facets={SLICE_FACET: _slice_facet(job, result or {"ray_job_id": ray_job_id}, failure)},
    )


def _slice_facet(
    job: SliceJob, result: Mapping[str, Any], failure: Failure | None
) -> RayDataLLMSliceRunFacet:
    counts = result.get("counts")
    return RayDataLLMSliceRunFacet(
        sliceKey=job.slice_key,
        fingerprint=fingerprint(job),
        model=job.model_source,
        engine=job.engine.kind,
        outcome=result.get("outcome"),
        counts=counts,
        tokens=result.get("tokens"),
        cost=result.get("cost"),
        rayJobId=result.get("ray_job_id"),
        reportPath=result.get("report_path"),
        quarantinePath=job.paths.quarantine if counts and counts["quarantined"] else None,
        failure=failure.without_row_texts().to_json() if failure is not None else None,
    )


def _assertions(
    gates: Sequence[Mapping[str, Any]],
) -> data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet:
    """What the gates said that knew a value."""
    known = [GateVerdict.model_validate(gate) for gate in gates if gate["value"] is not None]
    assertion = data_quality_assertions_dataset.Assertion
    return data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
        assertions=[assertion(assertion=str(gate), success=gate.has_passed) for gate in known]
    )


def _subset(table: Table) -> base_subset_dataset.BaseSubsetCondition | None:
    if table.location is not None:
        return base_subset_dataset.LocationSubsetCondition(locations=[table.location])
    if not table.partition:
        return None
    partition = base_subset_dataset.Partition(dimensions=dict(table.partition))
    return base_subset_dataset.PartitionSubsetCondition(partitions=[partition])
