"""What can be asked of a model: a task for each kind, with its own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, cast

from pydantic import Field

from airflow_provider_raydatallm.contract.spec.field import kinds_of
from airflow_provider_raydatallm.contract.spec.tasks.base import Task
from airflow_provider_raydatallm.contract.spec.tasks.classify import Classify
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.contract.spec.tasks.score import Score
from airflow_provider_raydatallm.contract.spec.tasks.transcribe import Transcribe

AnyTask: TypeAlias = Annotated[Generate | Classify | Embed | Score | Transcribe, Field(discriminator="kind")]

#: Tasks by the kinds that people write.
TASKS = cast("Mapping[str, type[Task]]", kinds_of(AnyTask))
DEFAULT_TASK = "generate"
#: Arguments that only tasks have; people write them beside the job's.
TASK_ARGUMENTS = frozenset(name for task in TASKS.values() for name in task.model_fields) - {"kind"}
