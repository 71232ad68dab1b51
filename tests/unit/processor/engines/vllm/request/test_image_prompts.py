"""Where images stand in a prompt, and that no row's text makes one up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import name_media
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from tests.support.slice_jobs import slice_job
from tests.support.vision_model import write_vision_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    write_vision_tokenizer(folder)
    return folder


def tokenizer(model: Path, **fields: Any) -> PromptTokenizer:
    return PromptTokenizer(slice_job(model_source=str(model), images__column="photo", **fields))


def request(messages: list[dict[str, str]], files: list[bytes], **fields: Any) -> str:
    return name_media(json.dumps({"messages": messages, **fields, "sampling_params": {}}), files)


def texts(model: Path, *requests: str) -> list[str]:
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(str(model))
    return [
        own.decode(row.tokens) if row.error is None else str(row.error) for row in tokenizer(model)(requests)
    ]


@pytest.mark.slow
def test_images_stand_before_the_text_of_the_first_user_message(model: Path) -> None:
    system, ask = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}
    again = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "Correct it."}]
    assert texts(
        model, request([ask], [b"a"]), request([system, ask], [b"a", b"b"]), request([ask, *again], [b"a"])
    ) == [
        "<|im_start|>user\n<image>What is it?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<image><image>What is it?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_start|>user\n<image>What is it?<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
        "<|im_start|>user\nCorrect it.<|im_end|>\n<|im_start|>assistant\n",
    ]  # fmt: skip


def test_an_image_that_a_row_s_text_spells_is_text(model: Path) -> None:
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(str(model))
    content = "Is <image> one?"
    message = [{"role": "user", "content": content}]
    [row] = tokenizer(model)([request(message, [b"a"], cells=[[[0, len(content)]]])])
    assert row.error is None
    assert list(row.tokens).count(own.convert_tokens_to_ids("<image>")) == 1
    assert "Is <image> one?" in own.decode(row.tokens)


def test_request_without_a_user_s_message_fails(model: Path) -> None:
    assert (
        "no message is the user's" in texts(model, request([{"role": "system", "content": "x"}], [b"a"]))[0]
    )


@pytest.mark.parametrize("template", [
    "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    "{% for m in messages %}{{ m['content'] + '' }}{% endfor %}",
    "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}",
])  # fmt: skip
def test_model_whose_template_takes_no_images_is_refused(tmp_path: Path, template: str) -> None:
    write_vision_tokenizer(tmp_path, template)
    with pytest.raises(SliceError, match=r"the chat template of model .* takes none"):
        tokenizer(tmp_path)


def test_images_by_other_content_make_another_request(model: Path) -> None:
    message = [{"role": "user", "content": "x"}]
    same, other = request(message, [b"a", b"b"]), request(message, [b"b", b"a"])
    assert same == request(message, [b"a", b"b"]) != other
    assert json.loads(same)["messages"] == message
