"""What a worker is asked for by a task whose answer is numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.processor.engines.vllm.request.long_text import LONG_TEXT, LongText

#: What a worker takes in place of sampling parameters: arguments of vLLM's `PoolingParams`, under this name.
POOLING = "pooling"


def pooling_params(job: SliceJob, *, types_from: int | None = None, around: tuple[int, int] = (0, 0)) -> str:
    """Returns what a worker takes in place of sampling parameters (JSON).

    :param types_from: the first token of type 1, of a pair.
    :param around: special tokens before and after a text.
    """
    params: dict[str, Any] = {"task": "classify"}  # vLLM's name for all heads
    if isinstance(job.task, Embed):
        embedding = job.task.embedding
        params = {
            "task": "embed",
            "use_activation": embedding.normalize,
            "dimensions": embedding.dimensions,
        }
    if types_from is not None:
        params["extra_kwargs"] = {"compressed_token_type_ids": types_from}
    asked: dict[str, Any] = {POOLING: params}
    if job.quality.on_too_long == "chunk":
        asked[LONG_TEXT] = asdict(LongText(*around, normalize=job.task_as(Embed).embedding.normalize))
    return to_json(asked).decode()
