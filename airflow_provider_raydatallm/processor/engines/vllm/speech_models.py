"""Checks that a model writes down recordings, and that they can be decoded, before an engine starts."""

from __future__ import annotations

import importlib.util

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.transcribe import Transcribe
from airflow_provider_raydatallm.processor.sizing.model_config import load_config


def check_speech_model(job: SliceJob) -> None:
    """Checks a model whose files are on this machine.

    :raises SliceError: when it is no Whisper, or PyAV is not installed.
    """
    if not isinstance(job.task, Transcribe):
        return
    if importlib.util.find_spec("av") is None:
        raise SliceError(
            "task='transcribe' decodes recordings by PyAV, which is not installed on the cluster's head",
            kind="cluster",
            advice="Install the package av on every node",
        )
    config = load_config(job.model_source, job.engine.arguments)
    kind = config.get("model_type") if config is not None else "whisper"
    if kind != "whisper":
        raise SliceError(
            f"task='transcribe' is for Whisper models, and {job.model_source!r} is of the type {kind!r}",
            kind="input",
            advice="Give one, such as 'openai/whisper-large-v3'",
        )
