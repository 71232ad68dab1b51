"""Answers with the first of the choices that the prompt names."""

import json
import time
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.base import Engine, answer_table
from airflow_provider_raydatallm.processor.sizing.facts import Resources


class Keywords(Engine):
    @property
    def resources(self) -> Resources:
        return Resources(cpus=1, gpus=0, breakdown="1 to compare texts")

    @property
    def batch_size(self) -> int:
        return 500

    def answer_requests(self, requests: Any, deliver: Any) -> Any:
        answers = requests.map_batches(answer, batch_size=self.batch_size, batch_format="pyarrow")
        return deliver.deliver_blocks(answers)


def answer(batch: pa.Table) -> pa.Table:
    labels, errors, began = [], [], time.time()
    for text in batch.column("__request").to_pylist():
        request = json.loads(text)
        prompt = request["messages"][-1]["content"].lower()
        choices = request["sampling_params"]["structured_outputs"]["choice"]
        labels.append(next((choice for choice in choices if choice.lower() in prompt), None))
        errors.append(None if labels[-1] else "the prompt names none of the choices")
    kinds = [error and "NoKeyword" for error in errors]
    times = {
        "engine_seconds": [time.time() - began] * len(labels),
        "finished_at": [time.time()] * len(labels),
    }
    return answer_table(batch, text=labels, error=errors, error_type=kinds, **times)
