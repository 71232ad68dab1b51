"""Finds the class of the engine that a job names."""

from __future__ import annotations

import importlib

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine

_FOLDER = __name__.rpartition(".")[0]
_ENGINES = {
    "vllm": f"{_FOLDER}.vllm.engine:VllmEngine",
    "ray_data_llm": f"{_FOLDER}.ray_data_llm:RayDataLLM",
    "http": f"{_FOLDER}.http.engine:HttpEngine",
}
_SHARED = f"{_FOLDER}.shared.engine:SharedVllmEngine"


def load_engine(job: SliceJob) -> type[Engine]:
    """The class of a job's engine: a built-in one, or the one that `package.module:Class` names.

    :raises SliceError: when it cannot be loaded or is not an engine.
    """
    name = job.resolved_engine
    reference = _SHARED if job.engine_scope == "shared" else _ENGINES.get(name, name)
    module, _, attribute = reference.partition(":")
    try:
        engine = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise SliceError(f"engine {name!r} cannot be loaded on the cluster: {e}", kind="input") from e
    if not (isinstance(engine, type) and issubclass(engine, Engine)):
        raise SliceError(f"engine {name!r} is not a subclass of {Engine.__module__}.Engine", kind="input")
    return engine
