"""The error of a run whose processes die again and again."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Kind, Place
from airflow_provider_raydatallm.processor.root_error import root_error

#: Of rows that are lost again and again.
ROW_ADVICE = (
    "If every try ends at these rows, the code that reads one of them or checks its answer ends its process"
)


def death_error(
    sentence: str, death: Exception, *, kind: Kind, place: Place | None = None, advice: str = ""
) -> SliceError:
    """
    :param sentence: what died how often; the reason is added.
    :param death: the last one, by Ray.
    :param place: of the first row that is missing.
    """
    failure = root_error(death)
    error = SliceError.of(
        replace(
            failure,
            kind=kind,
            sentence=f"{sentence}: {failure.sentence}",
            advice=tuple(filter(None, (*failure.advice, advice))),
            place=place or failure.place,
        )
    )
    actor = getattr(death, "actor_id", None)
    error.log = {"actor_id": actor} if actor else None
    return error
