"""The parser of each task's answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.request.answers.numbers import ScoreParser, VectorParser
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser

_OF_NUMBERS: Mapping[str, type[ScoreParser] | type[VectorParser]] = {
    "embed": VectorParser,
    "score": ScoreParser,
}


def open_parser(
    job: SliceJob, postprocess: Callable[[dict[str, Any]], Any] | None, input_columns: Collection[str]
) -> AnswerParser:
    """
    :param input_columns: names that answer columns must not have.
    :raises SliceError: when the job's answers cannot have the shape that it asks for.
    """
    if (of_numbers := _OF_NUMBERS.get(job.task.kind)) is not None:
        return of_numbers(job)
    return TextParser(job, postprocess, input_columns)
