"""What a spec holds is JSON, and the same on both sides."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.slice_jobs import refusal, slice_job


class Word(str, Enum):  # noqa: UP042  (a `StrEnum` is a plain text to Python)
    ENGINE = "vllm"
    TASK = "embed"
    STOP = "end"


@pytest.mark.parametrize(
    "path", ["engine__kwargs", "sampling_params", "chat_template_kwargs", "output_schema"]
)
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"a", "b"}, (x for x in "ab"), Decimal("1.5"), object()]
)
def test_what_json_has_not_is_refused_at_any_depth(path: str, value: Any) -> None:
    said = refusal(**{path: {"x": [{"y": value}]}})
    assert said.startswith(path.replace("__", "."))


@pytest.mark.parametrize("text", ["1e999", "-1e999"])
def test_text_of_a_number_that_is_too_large_stays_text(text: str) -> None:
    job = slice_job(sampling_params={"seed": text})
    assert job.task.sampling == {"seed": text}
    assert fingerprint(SliceJob.model_validate_json(job.model_dump_json())) == fingerprint(job)


def test_members_of_an_enum_of_texts_are_their_texts() -> None:
    plain = slice_job(task="embed", engine={"kind": "vllm"})
    assert slice_job(task=Word.TASK, engine=Word.ENGINE) == plain
    assert slice_job(task=Word.TASK, engine={"kind": Word.ENGINE}) == plain
    assert slice_job(sampling_params={"stop": [Word.STOP]}) == slice_job(sampling_params={"stop": ["end"]})
