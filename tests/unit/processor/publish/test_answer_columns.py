from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.publish.answer_columns import with_known_size
from airflow_provider_raydatallm.processor.request.answers.numbers import VectorParser
from tests.support.in_process import job_of


def test_first_slice_without_a_vector_asks_the_hub_how_long_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(
        input_path="/i", output_path=f"{tmp_path}/out", task="embed", engine="vllm", model_source="who/what",
        engine__kwargs={"revision": "v1"}, embedding__dtype="int8",
    )  # fmt: skip

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> None:
        assert (name, revision) == ("who/what", "v1")
        assert not any("safetensors" in pattern for pattern in allow_patterns)
        folder = tmp_path / "hub" / "models--who--what" / "snapshots" / "1"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"hidden_size": 5}))

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    vectors, scale = with_known_size(job, VectorParser(job).known_fields)
    assert vectors == pa.field("answer", pa.list_(pa.int8(), 5))
    assert scale == pa.field("answer_scale", pa.float32())


def test_hub_that_cannot_be_reached_fails_no_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(
        input_path="/i", output_path=f"{tmp_path}/out", task="embed", engine="vllm", model_source="who/what"
    )

    def download(*names: str, **options: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert with_known_size(job, VectorParser(job).known_fields)[0].type == pa.list_(pa.float32())
