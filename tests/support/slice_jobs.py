from typing import Any

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob


def slice_job(**fields: Any) -> SliceJob:
    """A valid job, with some fields set."""
    required = {
        "slice_key": "2026-01-31", "input_path": "/in", "output_path": "s3://lake/out", "model_source": "m",
        "prompt": "{a}",
    }  # fmt: skip
    return SliceJob.model_validate({**required, **fields})
