"""Schemas that files and processes of other versions rely on."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS, ENTRY_SCHEMA

DETAILS = [
    ("finish_reason", pa.string()), ("reasoning", pa.string()), ("logprob", pa.float64()),
    ("logprob_tokens", pa.int32()),
]  # fmt: skip


def test_files_of_the_answer_cache_stay_readable() -> None:
    assert pa.schema([
        ("key", pa.binary(16)),
        ("text", pa.string()), ("numbers", pa.list_(pa.float32())), *DETAILS,
        ("texts", pa.list_(pa.struct([("text", pa.string()), *DETAILS]))),
        ("shortened", pa.bool_()),
        ("input_tokens", pa.int64()), ("output_tokens", pa.int64()), ("answered_at", pa.int64()),
    ]) == ENTRY_SCHEMA  # fmt: skip


def test_counters_of_fragments_keep_their_names() -> None:
    assert {
        "__input_tokens", "__output_tokens", "__cached_tokens", "__saved_tokens", "__shortened",
        "__deduplicated", "__cached", "__truncated", "__degenerate", "__asked_again", "__reasoning_tokens",
    } <= {f.name for f in COUNT_FIELDS}  # fmt: skip
