"""Rows that are longer than the engine's limit, with the real tokenizer and the real engine."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.feeding.token_lengths import (
    sample_rows,
    sample_token_lengths,
)
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
from airflow_provider_raydatallm.processor.input.listing import list_input
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from tests.support.in_process import changed, job_of
from tests.support.marks import long
from tests.support.slices import WARM_ENGINE, Ask

#: Over 256 tokens, which is the limit of the engine that most tests share.
LONG = "far too long " * 70


@pytest.fixture
def job(tiny_model: Path, tmp_path: Path) -> SliceJob:
    pq.write_table(pa.table({"name": ["Ann"] * 19 + [LONG]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", model_source=str(tiny_model),
        sampling_params={"max_tokens": 8},
    )  # fmt: skip


def lengths_of(job: SliceJob, *units: tuple[int, int]) -> list[int]:
    """:param units: the rows of each, from the first unit on."""
    missing = MissingRows(np.arange(len(units)), np.arange(len(units)) + 1, np.array(units, np.int32))
    plan = make_plan(job, list_input(job))
    builder = RequestBuilder(plan.columns, prompt=job.task.prompt, sampling_params=job.task.sampling)
    open_tokenizer = partial(PromptTokenizer, job)
    return list(sample_token_lengths(open_tokenizer, plan, sample_rows(missing), builder).tokens)


def test_lengths_are_those_of_the_rows_that_are_to_be_answered(job: SliceJob, tmp_path: Path) -> None:
    short, *rest = lengths_of(job, (0, 20))
    assert rest[:18] == [short] * 18
    assert rest[18] > short + 40
    assert lengths_of(job, (19, 20)) == rest[18:]
    assert lengths_of(changed(job, sampling_params={"max_tokens": 108}), (0, 1)) == [short + 100]

    # Of a large slice some rows, from everywhere in it: a twentieth of these is long.
    rows = pa.table({"name": (["Ann"] * 19 + [LONG]) * 5000})
    pq.write_table(rows, tmp_path / "large.parquet", row_group_size=9000)
    large = changed(job, input_path=f"{tmp_path}/large.parquet")
    units = make_plan(large, list_input(large)).units
    sample = lengths_of(large, *[(0, u.rows) for u in units])
    assert 900 <= len(sample) <= 1100
    assert 0.02 < sum(n > short for n in sample) / len(sample) < 0.08


def test_prompt_is_shortened_where_it_can_be(job: SliceJob) -> None:
    def request(*texts: str, max_tokens: int = 8) -> str:
        messages = [{"role": "user" if i else "system", "content": t} for i, t in enumerate(texts)]
        return json.dumps({"messages": messages, "sampling_params": {"max_tokens": max_tokens}})

    whole, limited = PromptTokenizer(job), PromptTokenizer(job, 64)
    [given] = whole([request("Say it.", LONG)])
    [cut] = limited([request("Say it.", LONG)])
    assert given.total_tokens > 64 >= cut.total_tokens > 56
    assert (given.shortened, cut.shortened) == (False, True)
    assert cut.tokens[:8] == given.tokens[:8]  # the instructions
    assert cut.tokens[-2:] == given.tokens[-2:]  # the template's end
    [fits] = limited([request("Say it.", "Ann")])
    assert (fits.shortened, fits.error) == (False, None)
    [impossible] = limited([request("Say it.", LONG, max_tokens=63)])
    assert "cannot be shortened" in str(impossible.error)
    # Instructions stay as they are, also where the text comes in parts and is the shorter one.
    parts = [{"type": "text", "text": LONG[:100]}, {"type": "text", "text": LONG[:100]}]
    messages = [{"role": "system", "content": "Say it well. " * 30}, {"role": "user", "content": parts}]
    said = {"messages": messages, "sampling_params": {"max_tokens": 8}}
    [given] = whole([json.dumps(said)])
    [cut] = PromptTokenizer(job, given.total_tokens - 10)([json.dumps(said)])
    assert (cut.shortened, cut.total_tokens <= given.total_tokens - 10) == (True, True)
    system = whole([json.dumps({**said, "messages": messages[:1]})])[0].tokens[:-3]
    assert cut.tokens[: len(system)] == system
    # A row's odd parameters are its own failure.
    odd, fine = limited([request("", "Ann", max_tokens=n) for n in ("16.0", 8)])  # type: ignore[arg-type]
    assert (type(odd.error), fine.error) == (ValueError, None)
    assert limited([]) == []


@pytest.mark.parametrize(
    ("on_too_long", "limit", "shortened"),
    [("truncate", WARM_ENGINE["max_model_len"], 1), long("truncate", "auto", 1), long("raise_limit", 64, 0)],
)
def test_rows_over_the_limit_are_answered_all_the_same(
    ask: Ask, job: SliceJob, on_too_long: str, limit: int | str, shortened: int
) -> None:
    result = ask(
        input_path=job.input_path, prompt=job.task.prompt, model_source=job.model_source,
        sampling_params={"temperature": 0, "max_tokens": 8}, quality__on_too_long=on_too_long,
        engine__kwargs={"max_model_len": limit}, engine__max_model_len_percentile=95, poll_interval=1.0,
        engine__deduplicate=False,
    )  # fmt: skip
    counts = result["counts"]
    assert result["balance"]["workers"] == 1
    assert set(result["advice"]) <= {"answers_cut"}  # the tiny model may go on about a shortened row
    assert (counts["succeeded"], counts["quarantined"], counts["shortened"]) == (20, 0, shortened)
    answers = pq.read_table(result["output_path"], partitioning=None)
    assert answers.column("name").to_pylist() == ["Ann"] * 19 + [LONG]
    lengths = lengths_of(job, (0, 20))
    whole = sum(lengths) - 20 * 8
    assert result["tokens"]["input"] == whole if not shortened else result["tokens"]["input"] < whole - 20
