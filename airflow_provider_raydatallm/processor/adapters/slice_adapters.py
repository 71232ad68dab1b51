"""The adapters of a slice: read, checked and named by their content, before anything is spent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.adapters.adapter import CONFIG, WEIGHTS, Adapter
from airflow_provider_raydatallm.processor.adapters.checks import adapter_problems, read_shapes
from airflow_provider_raydatallm.processor.adapters.node_copies import copy_adapter
from airflow_provider_raydatallm.processor.sizing.model_config import load_config

#: Adapters that are copied at once.
COPIES_AT_ONCE = 8


@dataclass(frozen=True)
class SliceAdapters:
    """by_name: the adapters, by the names that rows have; of one for all rows, by its folder."""

    by_name: Mapping[str, Adapter] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Changes with the content of any of them; "" where there are none."""
        if not self.by_name:
            return ""
        contents = {name: adapter.digest for name, adapter in self.by_name.items()}
        return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def read_adapters(job: SliceJob) -> SliceAdapters:
    """Copies the job's adapters to this node and checks them.

    :raises SliceError: naming one that cannot be read, or cannot work with the model.
    """
    urls = job.task.lora.paths if job.task.lora.path is None else {job.task.lora.path: job.task.lora.path}
    if not urls:
        return SliceAdapters()
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        adapters = pool.map(partial(_read_adapter, job), urls, urls.values())
        return SliceAdapters({adapter.name: adapter for adapter in adapters})


def _read_adapter(job: SliceJob, name: str, url: str) -> Adapter:
    digest, copy = copy_adapter(name, url)
    try:
        config, shapes = json.loads((copy / CONFIG).read_bytes()), read_shapes(copy / WEIGHTS)
        problems = list(
            adapter_problems(
                config,
                shapes,
                load_config(job.model_source, job.engine.arguments),
                model_source=job.model_source,
                base_model=job.task.lora.base_model,
            )
        )
    except ValueError as e:
        problems = [f"its {CONFIG} or {WEIGHTS} cannot be read: {e}"]
    rank = 0 if problems else config["r"]
    adapter = Adapter(name, url, digest, rank)
    if problems:
        raise SliceError(f"{adapter} cannot be used: {'; '.join(problems)}", kind="input")
    return adapter
