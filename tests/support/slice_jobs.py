from typing import Any

import pydantic
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from tests.support.arguments import merged, written


def spec(**given: Any) -> SliceJob:
    """The job that arguments say; see `arguments.written`."""
    return SliceJob.model_validate(written(**given))


def slice_job(**given: Any) -> SliceJob:
    """A valid job, with some arguments given."""
    required = {
        "slice_key": "2026-01-31", "input_path": "/in", "output_path": "s3://lake/out", "model_source": "m",
        "prompt": "{a}",
    }  # fmt: skip
    return SliceJob.model_validate(merged(required, **given))


def changed(job: SliceJob, **given: Any) -> SliceJob:
    """The job with other arguments."""
    return SliceJob.model_validate(merged(job.model_dump(), **given))


def refusal(**given: Any) -> str:
    """What is wrong with a job that cannot be, in the words of those who wrote it."""
    with pytest.raises(pydantic.ValidationError) as refused:
        slice_job(**given)
    return describe_problems(refused.value)
