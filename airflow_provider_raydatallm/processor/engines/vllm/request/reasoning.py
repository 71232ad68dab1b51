"""What a worker is asked for where a model's reasoning is to be told from its answer."""

from __future__ import annotations

from typing import Any

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate

#: What a worker takes beside sampling parameters: arguments of the chat template, under this name.
REASONING = "reasoning"


def reasoning_params(job: SliceJob) -> dict[str, Any]:
    """Returns what a worker takes beside the sampling parameters of the job's requests."""
    task = job.task_as(Generate)
    return {REASONING: task.chat_template_kwargs} if task.reasoning_parser is not None else {}
