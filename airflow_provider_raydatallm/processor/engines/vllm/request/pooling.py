"""What a worker is asked for by a task whose answer is numbers."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

#: What a worker takes in place of sampling parameters: arguments of vLLM's `PoolingParams`, under this name.
POOLING = "pooling"


def pooling_params(job: SliceJob, types_from: int | None = None) -> str:
    """Returns what a worker takes in place of sampling parameters (JSON).

    :param types_from: the first token of type 1, of a pair.
    """
    params: dict[str, Any] = {"task": "classify"}  # vLLM's name for all heads
    if job.task == "embed":
        params = {
            "task": "embed",
            "use_activation": job.embedding_normalize,
            "dimensions": job.embedding_dimensions,
        }
    if types_from is not None:
        params["extra_kwargs"] = {"compressed_token_type_ids": types_from}
    return to_json({POOLING: params}).decode()
