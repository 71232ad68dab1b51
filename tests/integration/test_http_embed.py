"""Vectors by an endpoint: those of vLLM's own server, for the rows that it answers, and only they."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web

from tests.support import real_models
from tests.support.endpoint import embedding, endpoint, error, proxy, text_of
from tests.support.slices import Ask
from tests.support.vllm_server import NAME, vllm_server

#: Tokens that the model has positions for.
LENGTH = 256
SIZE = 384


def vectors_of(server: str, texts: list[str]) -> np.ndarray:
    """As the server itself says them, as text."""
    body = json.dumps({"model": NAME, "input": texts}).encode()
    request = urllib.request.Request(f"{server}/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return np.array([item["embedding"] for item in json.load(reply)["data"]], np.float32)


@pytest.mark.long
def test_model_that_changes_behind_its_name_mixes_no_cached_vectors_with_new_ones(
    ask: Ask, tmp_path: Path
) -> None:
    size, texts = 8, [f"row {i}" for i in range(20)]

    def vector(text: str) -> list[float]:
        return [float(1 + int(text.split()[1]))] * size

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        return embedding(vector(text) if text.startswith("row ") else [1.0] * size)

    def run(name: str, some: list[str]) -> list[Any]:
        pq.write_table(pa.table({"text": some}), tmp_path / f"{name}.parquet")
        result = ask(
            task="embed", input_path=f"{tmp_path}/{name}.parquet", output_path=f"{tmp_path}/{name}",
            model_source="m", prompt="{text}", output_column="vector", poll_interval=1.0,
            engine={"kind": "http", "url": served.url, "cache": f"{tmp_path}/cache"},
            embedding={"normalize": False},
        )  # fmt: skip
        return [result["counts"]["cached"], pq.read_table(result["output_path"]).column("vector").to_pylist()]

    with endpoint(respond) as served:
        assert run("first", texts[:10]) == [0, [vector(text) for text in texts[:10]]]
        assert run("again", texts[:10]) == [10, [vector(text) for text in texts[:10]]]
        size = 16
        assert run("changed", texts) == [0, [vector(text) for text in texts]]


@pytest.mark.long
def test_vectors_are_the_endpoints_and_bad_rows_stop_no_other(ask: Ask, tmp_path: Path) -> None:
    mails = [mail["text"][:200] for mail in pq.read_table(real_models.mails()).to_pylist()[:60]]
    texts = [*mails, "\U0001f600 \u4e2d\u6587", mails[0]]
    bad = {"too long " * 300: "PromptTooLong", "not a number": "InvalidVector"}
    failed_once: set[str] = set()

    async def fault(number: int, body: dict[str, Any]) -> web.StreamResponse | None:
        text = text_of(body)
        if text == "not a number":
            return embedding([float("nan")] * SIZE)
        if number % 10 == 3 and text not in failed_once:
            failed_once.add(text)
            return error(500)
        return None

    pq.write_table(pa.table({"text": [*texts, *bad]}), tmp_path / "in.parquet")
    with vllm_server(real_models.minilm(), LENGTH) as server, proxy(server, fault) as served:
        arguments: dict[str, Any] = {
            "task": "embed", "input_path": f"{tmp_path}/in.parquet", "model_source": NAME,
            "prompt": "{text}", "output_column": "vector", "poll_interval": 1.0,
            "engine": {"kind": "http", "url": served.url},
        }  # fmt: skip
        result = ask(**arguments)
        expected = vectors_of(server, texts)
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.schema.field("vector").type == pa.list_(pa.float32(), SIZE)
    assert published.column("text").to_pylist() == texts
    vectors = np.array(published.column("vector").to_pylist(), np.float32)
    assert np.abs(vectors - expected).max() < 1e-3
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    failed = pq.read_table(tmp_path / "out.quarantine").to_pylist()
    assert {row["text"]: row["__error_type"] for row in failed} == bad
    counts, tokens = result["counts"], result["tokens"]
    assert (counts["succeeded"], counts["deduplicated"]) == (len(texts), len(texts) - len(set(texts)))
    assert (tokens["input"] > 10 * len(texts), tokens["output"]) == (True, 0)
    assert failed_once
