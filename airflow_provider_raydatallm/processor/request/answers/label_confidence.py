"""From the probabilities of labels to the published label, or labels, and to columns that say how sure the
model is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.classify import Classify
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.request.answers.output_schema import InvalidOutput


def fields(job: SliceJob) -> list[pa.Field]:
    """Returns the columns beside the label's; none unless the job asks for them."""
    task = job.task
    if not (isinstance(task, Generate | Classify) and task.labels.confidence):
        return []
    name = job.output_column
    if isinstance(task, Generate) and task.labels.multi:
        # A label more makes it no other type, as it would a struct: readers take old and new slices together.
        return [pa.field(f"{name}_probability", pa.map_(pa.string(), pa.float32()))]
    return [
        pa.field(f"{name}_probability", pa.float32()),
        pa.field(f"{name}_runner_up", pa.string()),
        pa.field(f"{name}_runner_up_probability", pa.float32()),
        pa.field(f"{name}_entropy", pa.float32()),  # in bits: 0 when sure, log2 of their number at most
    ]


def read_labels(
    labels: Sequence[str], probabilities: Sequence[float], *, are_several: bool
) -> tuple[Any, list[Any]]:
    """Returns a row's label, or several, and the values of `fields`.

    :param probabilities: of the labels, in their order.
    :param are_several: whether each applies, or does not, by itself.
    :raises InvalidOutput: when they are no numbers.
    :raises SliceError: when they are of other labels.
    """
    if len(labels) != len(probabilities):
        raise SliceError(
            f"the model's head has {len(probabilities)} labels, and choices has {len(labels)}", kind="input"
        )
    if not all(map(math.isfinite, probabilities)):
        raise InvalidOutput("holds probabilities that are no numbers")
    if are_several:
        of_each = list(zip(labels, probabilities, strict=True))
        return [label for label, probability in of_each if probability > 0.5], [of_each]
    first, second = sorted(range(len(labels)), key=lambda i: -probabilities[i])[:2]
    entropy = -sum(p * math.log2(p) for p in probabilities if p > 0)
    return labels[first], [probabilities[first], labels[second], probabilities[second], entropy]
