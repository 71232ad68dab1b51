"""Which shared engines are equal, and which one can answer in place of another."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.shared.identity import Identity


def identity(model: str = "m", *, others: Any = None, **arguments: Any) -> Identity:
    return Identity.of(model, arguments, others)


@pytest.mark.parametrize(("has", "needs", "covers"), [
    (256, 256, True), (256, 64, True), (64, 256, False), (None, 64, True), (64, None, False),
])  # fmt: skip
def test_engine_with_a_larger_limit_covers(has: int | None, needs: int | None, covers: bool) -> None:
    def limited(limit: int | None) -> Identity:
        return identity(**({} if limit is None else {"max_model_len": limit}))

    assert limited(has).covers(limited(needs)) == covers
    assert limited(has).name != limited(needs).name or has == needs


@pytest.mark.parametrize("other", [
    {"max_num_seqs": 4}, {"model": "n"}, {"others": {"accelerator_type": "L4"}},
])  # fmt: skip
def test_engine_that_is_another_in_anything_else_covers_none(other: dict[str, Any]) -> None:
    needs = identity(max_model_len=64, **other)
    assert not identity(max_model_len=256).covers(needs)
    assert identity(max_model_len=64, **other).name == needs.name != identity(max_model_len=64).name


def test_what_is_kept_of_an_engine_has_no_secret_and_tells_engines_apart_by_it() -> None:
    one, another = (identity(max_model_len=64, hf_token=token) for token in ("hf_a", "hf_b"))
    assert one.arguments == {"max_model_len": 64}
    assert one.name != another.name
    assert Identity.from_json(one.to_json()) == one


@pytest.mark.parametrize(("model", "name"), [
    ("meta-llama/Llama-3.1-8B-Instruct", "ray-llm-Llama-3.1-8B-Instruct-"),
    ("/models/mine#1 (new)/", "ray-llm-mine-1-new--"),
])  # fmt: skip
def test_engines_are_named_after_their_model(model: str, name: str) -> None:
    assert identity(model).name[:-12] == name
