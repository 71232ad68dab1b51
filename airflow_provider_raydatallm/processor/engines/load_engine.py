"""Finds the class of the engine that a job names."""

from __future__ import annotations

import importlib

from airflow_provider_raydatallm.contract.result.errors import SliceError, loading
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine


def load_engine(job: SliceJob) -> type[Engine]:
    """The class of a job's engine: a built-in one, or the one that `package.module:Class` names.

    :raises SliceError: when it cannot be loaded or is not an engine.
    """
    name = job.engine.kind
    module, _, attribute = job.engine.reference.partition(":")
    with loading(f"engine {name!r}", module):
        engine = getattr(importlib.import_module(module), attribute)
    if not (isinstance(engine, type) and issubclass(engine, Engine)):
        raise SliceError(f"engine {name!r} is not a subclass of {Engine.__module__}.Engine", kind="input")
    return engine
