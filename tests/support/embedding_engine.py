"""Ray Data LLM's processor with the task `embed`: an answer is the vector as JSON text. It travels with the
job."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.columns import ANSWER_FIELDS
from airflow_provider_raydatallm.processor.engines.base import AnswerSink
from airflow_provider_raydatallm.processor.engines.ray_data_llm import RayDataLLM

if TYPE_CHECKING:
    import ray.data


class EmbeddingEngine(RayDataLLM):
    @property
    def cpu_actors(self) -> tuple[int, int]:
        return 0, 0

    def answer_requests(self, requests: ray.data.Dataset, deliver: AnswerSink) -> ray.data.Dataset:
        from ray.data import llm

        config = llm.vLLMEngineProcessorConfig(
            model_source=self.job.model_source, task_type="embed",
            engine_kwargs={**self.engine_kwargs, "disable_log_stats": True}, concurrency=self.workers,
            batch_size=self.batch_size, chat_template_stage=False, tokenize_stage=False,
            detokenize_stage=False, placement_group_config={"bundles": [{"CPU": 1}]},
            runtime_env={"env_vars": self.env}, log_engine_metrics=False,
        )  # fmt: skip
        processor = llm.build_processor(config, preprocess=_to_prompt)
        processor.postprocess = partial(_to_answer, data_column=processor.DATA_COLUMN)
        return deliver.deliver_blocks(processor(requests))


def _to_prompt(row: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": json.loads(row["__request"])["messages"][-1]["content"]}


def _to_answer(row: dict[str, Any], *, data_column: str) -> dict[str, Any]:
    row = row[data_column]
    return {
        **dict.fromkeys(field.name for field in ANSWER_FIELDS),
        **{name: row[name] for name in ("__unit", "__offset", "__row") if name in row},
        "text": json.dumps([float(x) for x in row["embeddings"]]), "input_tokens": row["num_input_tokens"],
        "output_tokens": 0, "engine_seconds": row["time_taken_llm"], "finished_at": time.time(),
    }  # fmt: skip
