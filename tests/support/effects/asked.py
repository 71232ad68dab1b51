"""What a model, or an endpoint, gets for a request, and how its answer is read: by each engine's own code."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_raydatallm.contract.spec import engine_arguments
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.engines.http.api import Api
from airflow_provider_raydatallm.processor.engines.http.engine import HttpEngine
from airflow_provider_raydatallm.processor.engines.ray_data_llm import RayDataLLM, _to_request
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.engines.vllm.request.text_tokenizer import TextTokenizer
from airflow_provider_raydatallm.processor.media.reader import MediaReader
from tests.support.effects.bench import VECTOR_SIZE, feeder_setup
from tests.support.effects.functions import OwnEngine

#: A request, and the content of its files.
Asked = tuple[str, Sequence[bytes]]


def asked_of_model(engine: Engine, requests: Sequence[Asked]) -> list[Any]:
    """Returns what stands for each request, in a form that can be compared; None where it is refused."""
    for kind, ask in _ASK.items():
        if isinstance(engine, kind):
            return ask(engine, requests)
    raise TypeError(f"nobody says what {type(engine).__name__} asks")


def _ask_vllm(engine: VllmEngine, requests: Sequence[Asked]) -> list[Any]:
    tokenized = feeder_setup(engine).open_tokenizer()([text for text, _ in requests])
    media: Sequence[Any] = [()] * len(requests)
    if engine.job.task.media is not None:
        media = MediaReader(engine.job).decode([files for _, files in requests])
    arguments = _affecting(engine._worker_arguments())
    return [
        None
        if request.error is not None or isinstance(shown, Exception)
        else _plain(arguments, list(request.tokens), request.params, shown)
        for request, shown in zip(tokenized, media, strict=True)
    ]


def _plain(arguments: Any, tokens: list[int], params: str, media: Sequence[Any] = ()) -> Any:
    return {"arguments": arguments, "tokens": tokens, "params": json.loads(params), "media": list(media)}


def _ask_ray_data_llm(engine: RayDataLLM, requests: Sequence[Asked]) -> list[Any]:
    """As its stages would: the first renders messages by the template, the second tokenizes the text."""
    config = _config(engine)
    arguments = _affecting({"model": config.model_source, **config.engine_kwargs})
    arguments.pop("task_type", None)  # of Ray Data LLM's own
    tokenizer, template = TextTokenizer(engine.job), config.chat_template_stage
    answers = []
    for text, _ in requests:
        row = _to_request({"__request": text})
        prompt = tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, chat_template=template.get("chat_template"),
            **(template.get("chat_template_kwargs") or {}),
        )  # fmt: skip
        answers.append(_plain(arguments, tokenizer([prompt])[0], row["sampling_params"]))
    return answers


def _config(engine: RayDataLLM) -> Any:
    """Ray Data LLM's own, which refuses options that it does not have."""
    from ray.data import llm

    configs: list[Any] = []
    stage = SimpleNamespace(fn=object, model_copy=lambda update: None)

    class Processor(SimpleNamespace):
        def __call__(self, requests: Any) -> Any:
            return requests

    def build(config: Any, **options: Any) -> Processor:
        configs.append(config)
        return Processor(
            list_stage_names=list, get_stage_by_name=lambda name: stage, stages={}, DATA_COLUMN=""
        )

    deliver: Any = SimpleNamespace(deliver_blocks=lambda answers: answers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "build_processor", build)
        engine.answer_requests(None, deliver)  # type: ignore[arg-type]
    return configs[0]


def _ask_endpoint(engine: HttpEngine, requests: Sequence[Asked]) -> list[Any]:
    """An endpoint is known by its model: where it is does not count."""
    api = feeder_setup(engine).open_tokenizer()
    assert isinstance(api, Api)
    return [
        {"path": api.path, "body": json.loads(body), "read": _read(api, body)}
        for body in (request.params for request in api([text for text, _ in requests]))
    ]


def _read(api: Api, body: str) -> Any:
    """How its answer to any of them is read."""
    if api.writes:
        reply: Any = {"choices": [{"message": {"content": "red"}, "finish_reason": "stop"}] * 3}
    else:
        size = json.loads(body).get("dimensions", VECTOR_SIZE)
        vector = np.arange(1, 1 + size, dtype="<f4").tobytes()
        reply = {"data": [{"embedding": base64.b64encode(vector).decode()}]}
    answer = api.read(json.dumps(reply).encode(), body.encode())
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in answer.items()}


def _ask_own(engine: OwnEngine, requests: Sequence[Asked]) -> list[Any]:
    return [{"arguments": _affecting(engine.arguments), "request": text} for text, _ in requests]


def _affecting(arguments: Mapping[str, Any]) -> dict[str, Any]:
    without = engine_arguments._NO_EFFECT_ON_ANSWERS
    return {name: value for name, value in arguments.items() if name not in without}


_ASK: Mapping[type[Engine], Callable[[Any, Sequence[Asked]], list[Any]]] = {
    VllmEngine: _ask_vllm,
    RayDataLLM: _ask_ray_data_llm,
    HttpEngine: _ask_endpoint,
    OwnEngine: _ask_own,
}


def files_of(job: SliceJob, rows: Sequence[Any]) -> list[Sequence[bytes] | Exception]:
    """Returns the content of each row's images, or recordings, or why they cannot be read."""
    return MediaReader(job).read(rows)
