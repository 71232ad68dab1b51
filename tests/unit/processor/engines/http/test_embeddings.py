from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from airflow_provider_raydatallm.processor.engines.http.embeddings import EmbeddingsApi
from airflow_provider_raydatallm.processor.engines.http.replies import DoubtfulRefusalError, PassingError
from tests.support.in_process import job_of

REQUEST = json.dumps({"messages": [{"role": "user", "content": "A text"}], "sampling_params": {}})


def api(**fields: Any) -> EmbeddingsApi:
    paths = {"input_path": "in", "output_path": "out"}
    return EmbeddingsApi(
        job_of(task="embed", engine="http", engine__url="https://h/v1", sampling_params={}, **paths, **fields)
    )


def reply(embedding: Any, **more: Any) -> bytes:
    return json.dumps({"data": [{"embedding": embedding}], "usage": {"prompt_tokens": 5}, **more}).encode()


def encoded(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


def test_body_is_the_text_in_a_form_that_needs_few_bytes() -> None:
    [request] = api()([REQUEST])
    assert json.loads(request.params) == {"model": "m/m", "input": "A text", "encoding_format": "base64"}
    [request] = api(embedding__dimensions=64)([REQUEST])
    assert json.loads(request.params)["dimensions"] == 64
    assert json.loads(api().with_text(request.params, "Hello")) == {
        **json.loads(request.params),
        "input": "Hello",
    }


@pytest.mark.parametrize("vector", [[3, 4.0], encoded(3, 4)])
def test_vector_has_length_1_unless_asked_otherwise(vector: Any) -> None:
    answer = api().read(reply(vector))
    assert answer["numbers"].tolist() == pytest.approx([0.6, 0.8])
    assert (answer["input_tokens"], answer["output_tokens"]) == (5, 0)
    assert api(embedding__normalize=False).read(reply(vector))["numbers"].tolist() == [3, 4]
    assert api().read(reply([0.0, 0.0]))["numbers"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "vector", [[float("nan"), 1.0], [None, 1.0], [1e300, 1.0], [float("inf"), 1], encoded(float("nan"), 1)]
)
def test_what_is_no_number_is_left_to_the_check_of_vectors(vector: Any) -> None:
    for normalize in (True, False):
        numbers = api(embedding__normalize=normalize).read(reply(vector))["numbers"]
        assert numbers.dtype == np.float32
        assert not np.isfinite(numbers).all()


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"data": []}', reply("AAA"), reply("!!!!"), reply([]), reply(""),
     reply([[1.0, 2.0]]), reply({"a": 1}), reply(["x"]), reply([10**400]), reply(7), b"[" * 10**6,
     reply([True, False]), reply(["1.5", "2"]), reply([1.0, [2.0]]), reply(True), reply(None),
     b'{"data": [{"embedding": [1, 2]}, {"embedding": [1, 2]}]}', b'{"data": {"0": 1}}',
     reply([1.0])[:-4], reply([1.0]) * 2, "\ufeff[]".encode("utf-16")],
)  # fmt: skip
def test_broken_reply_is_asked_for_again_and_may_have_cost(body: bytes) -> None:
    with pytest.raises(PassingError, match="not an embedding") as caught:
        api().read(body)
    assert caught.value.may_have_cost


def test_other_size_may_be_of_one_row_and_says_what_to_check_if_it_is_of_all() -> None:
    with pytest.raises(DoubtfulRefusalError, match=r"2 numbers, and embedding\.dimensions is 3") as caught:
        api(embedding__dimensions=3).read(reply([1.0, 2.0]))
    assert (caught.value.of_all.kind, caught.value.may_have_cost) == ("input", True)
    vectors = api()
    vectors.read(reply([1.0, 2.0]))
    with pytest.raises(DoubtfulRefusalError, match="3 numbers after others of 2"):
        vectors.read(reply([1.0, 2.0, 3.0]))
