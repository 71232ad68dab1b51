"""Another declaration of an argument, as somebody would write it by mistake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from airflow_provider_raydatallm.contract.spec.field import Affects, Declaration, declaration, models_of
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks import TASKS


@contextlib.contextmanager
def declared_as(path: str, affects: Affects) -> Iterator[None]:
    """Has an argument declare this, with all kinds that have it."""
    group, _, name = path.rpartition(".")
    models: list[type[BaseModel]] = [SliceJob, *TASKS.values()]
    if group:
        owners = [model.model_fields[group] for model in models if group in model.model_fields]
        models = [model for owner in owners for model in models_of(owner.annotation)]
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    assert fields, path
    kept = [(one, one.affects, one.counts) for one in map(declaration, fields) if one is not None]
    try:
        for one, *_ in kept:
            _set(one, affects, None)
        yield
    finally:
        for one, *values in kept:
            _set(one, *values)


def _set(declared: Declaration, affects: Any, counts: Any) -> None:
    """In place: leaves are found once."""
    object.__setattr__(declared, "affects", affects)
    object.__setattr__(declared, "counts", counts)
