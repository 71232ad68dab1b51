from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.speech_models import check_speech_model
from tests.support.slice_jobs import slice_job


def job_of(model: Path, **config: Any) -> Any:
    (model / "config.json").write_text(json.dumps(config))
    return slice_job(task="transcribe", audio__column="call", prompt=None, model_source=str(model))


def test_other_models_are_refused_before_an_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(SliceError, match=r"is for Whisper models, and .* is of the type 'llama'"):
        check_speech_model(job_of(tmp_path, model_type="llama"))
    check_speech_model(job_of(tmp_path, model_type="whisper"))
    check_speech_model(slice_job(task="transcribe", audio__column="call", model_source="openai/whisper-tiny"))
    check_speech_model(slice_job(model_source=str(tmp_path)))


def test_cluster_without_a_decoder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SliceError, match="Install the package av on every node") as refused:
        check_speech_model(job_of(tmp_path, model_type="whisper"))
    assert refused.value.kind == "cluster"
