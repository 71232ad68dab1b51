"""OpenAI's embeddings: from a row's text to a body, and from a reply to a vector. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic_core import to_json

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import TokenizedRequest
from airflow_provider_raydatallm.processor.engines.http.api import Api, count, mapping
from airflow_provider_raydatallm.processor.engines.http.replies import DoubtfulRefusalError

#: Of shorter vectors, as vLLM and PyTorch have it: a vector of zeros stays one.
_SHORTEST = 1e-12


class EmbeddingsApi(Api):
    path = "/embeddings"
    writes = False
    _reply_name = "an embedding"

    def __init__(self, job: SliceJob, size: int | None = None) -> None:
        """:param size: of a vector; None: that of the first."""
        super().__init__(job)
        # A third of the bytes of numbers as text. An endpoint that does not know it sends these: good, too.
        self._fixed: dict[str, Any] = {"model": job.model_source, "encoding_format": "base64"}
        self._embedding = job.task_as(Embed).embedding
        if self._embedding.dimensions is not None:
            self._fixed["dimensions"] = self._embedding.dimensions
        self._size = self._embedding.dimensions or size

    def to_body(self, request: Mapping[str, Any]) -> TokenizedRequest:
        text = "\n".join(message["content"] for message in request["messages"])
        return TokenizedRequest(params=to_json({**self._fixed, "input": text}).decode())

    def with_text(self, body: str, text: str) -> str:
        return json.dumps({**json.loads(body), "input": text})

    def plain(self, body: str, text: str) -> str:
        return json.dumps({"model": self.job.model_source, "input": text})

    def _read(self, reply: Any, asked: bytes, redact: Callable[[str], str]) -> dict[str, Any]:
        [item] = reply["data"]
        vector = _to_vector(item["embedding"])
        tokens = count(mapping(reply.get("usage")).get("prompt_tokens"))
        self._check_size(len(vector))
        if self._embedding.normalize:
            with np.errstate(invalid="ignore"):  # a number that is none makes all of them so
                vector = vector / np.maximum(np.linalg.norm(vector.astype(np.float64)), _SHORTEST)
        return {"numbers": vector.astype(np.float32), "input_tokens": tokens, "output_tokens": 0}

    def _check_size(self, size: int) -> None:
        """:raises DoubtfulRefusalError: for a size that the column does not have."""
        if self._size is None:
            self._size = size
        if size == self._size:
            return
        asked = self._embedding.dimensions
        if asked is not None:
            message = f"the endpoint answers a vector of {size} numbers, and embedding.dimensions is {asked}"
            advice = "Check that this model can cut its vectors, or leave embedding.dimensions out"
        else:
            message = f"the endpoint answers a vector of {size} numbers after others of {self._size}"
            advice = "Check that model_source names one model, at all servers behind engine.url"
        of_all = SliceError(message, kind="input", advice=advice)
        raise DoubtfulRefusalError(message, of_all, may_have_cost=True)


def _to_vector(value: Any) -> np.ndarray:
    """
    :param value: numbers, or their bytes as base64. What is not a number of float32 (null, 1e300) becomes
        one that the parser of vectors finds.
    :raises ValueError: for anything else.
    """
    if isinstance(value, str):
        vector = np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    else:
        if any(type(number) not in (int, float, type(None)) for number in value):  # NumPy reads "1.5", True
            raise ValueError("it holds something else than numbers")
        with np.errstate(over="ignore"):
            vector = np.asarray(value, np.float64).astype(np.float32)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"it has the shape {vector.shape}")
    return vector
