"""Checks that a model sees images, before an engine starts: in it, each row would fail of that."""

from __future__ import annotations

import json

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sizing.model_config import config_file

#: Words in the names of what a model's configuration says of images: `vision_config`, `image_token_id`.
_OF_IMAGES = ("vision", "visual", "image", "img", "vit_", "patch")


def check_image_model(job: SliceJob) -> None:
    """Checks a model whose files are on this machine.

    :raises SliceError: when its configuration says nothing of images.
    """
    file = config_file(job.model_source)
    if "images" not in job.task.given(job) or file is None:
        return
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # vLLM says what is wrong with it
    if isinstance(config, dict) and not any(word in name for name in config for word in _OF_IMAGES):
        raise SliceError(
            f"images is given, and model {job.model_source!r} takes none: its config.json has no vision part",
            kind="input",
            advice="Give a vision-language model, or leave images out",
        )
