"""registry."""

from __future__ import annotations

import importlib

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine

_ENGINES = {
    "vllm": "airflow_provider_raydatallm.processor.engines.vllm.engine:VllmEngine",
    "ray_data_llm": "airflow_provider_raydatallm.processor.engines.ray_data_llm:RayDataLLM",
}


_SHARED = "airflow_provider_raydatallm.processor.engines.shared.engine:SharedVllmEngine"


def load_engine(job: SliceJob) -> type[Engine]:
    """The engine that a job names, or the class that `package.module:Class` names.

    :raises SliceError: when there is none.
    """
    name = job.resolved_engine
    reference = _SHARED if job.engine_scope == "shared" else _ENGINES.get(name, name)
    module, _, attribute = reference.partition(":")
    if not attribute:
        raise SliceError(
            f"engine {name!r} is not known: use 'auto', {', '.join(map(repr, _ENGINES))} or "
            "'package.module:Class'",
            kind="input",
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise SliceError(f"engine {name!r} cannot be loaded on the cluster: {e}", kind="input") from e
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise SliceError(f"engine {name!r} is no subclass of {Engine.__module__}.Engine", kind="input")
    return found
