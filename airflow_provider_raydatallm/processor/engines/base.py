"""The one interface between the pipeline and whatever answers its requests.

An engine turns a dataset of requests into a dataset of answered rows, handed over in groups as they finish.
Nothing else in the pipeline knows which engine answers.

Requests have the columns `__unit` (int32), `__offset` (int64), `__request` (JSON text of messages and
sampling_params) and, when a postprocess function wants the row, `__row` (JSON text). Answers have `__unit`,
`__offset`, `__row` if it came in, and `ANSWER_FIELDS`. One answer for each request, in any order. A request
that fails for its own reason (a prompt that is too long, a chat template that refuses its messages) has
`error` set and keeps no other from being answered; what breaks the engine itself is raised.

Rows are safe from the moment they leave the engine: what it hands over in one block is the grain of resume.
An engine that hands over groups of finished rows before their batch is done loses less when it dies.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.spec import SliceJob

if TYPE_CHECKING:
    import ray.data

ROW_ID_FIELDS = [pa.field("__unit", pa.int32()), pa.field("__offset", pa.int64())]
ANSWER_FIELDS = [
    pa.field("text", pa.string()),
    pa.field("input_tokens", pa.int64()),
    pa.field("output_tokens", pa.int64()),
    pa.field("engine_seconds", pa.float64()),  # time the request spent in the engine
    pa.field("finished_at", pa.float64()),  # epoch seconds
    pa.field("error_type", pa.string()),
    pa.field("error", pa.string()),  # null for an answered row
]


@dataclass(frozen=True)
class Resources:
    """Logical CPUs and GPUs that must be there at once for the engine and its stages to start."""

    cpus: float
    gpus: float
    breakdown: str


class Engine(ABC):
    """Answers requests. Constructed in the driver, before anything is spent.

    :raises SliceError: from the constructor, for arguments that cannot work.
    """

    def __init__(self, job: SliceJob, rows: int) -> None:
        self.job = job
        self.rows = rows

    @property
    @abstractmethod
    def resources(self) -> Resources: ...

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Rows that are handed to the engine together."""

    @abstractmethod
    def answer(self, requests: ray.data.Dataset) -> ray.data.Dataset: ...


_ENGINES = {"ray_data_llm": "airflow_provider_raydatallm.processor.engines.ray_data_llm:RayDataLLM"}


def load_engine(name: str) -> type[Engine]:
    """The engine of that name, or the class that `package.module:Class` names.

    :raises SliceError: when there is none.
    """
    reference = _ENGINES.get(name, name)
    module, _, attribute = reference.partition(":")
    if not attribute:
        raise SliceError(
            f"engine {name!r} is not known: use {', '.join(map(repr, _ENGINES))} or 'package.module:Class'"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise SliceError(f"engine {name!r} cannot be loaded on the cluster: {e}") from e
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise SliceError(f"engine {name!r} is no subclass of {Engine.__module__}.Engine")
    return found
