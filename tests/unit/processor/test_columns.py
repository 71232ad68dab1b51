"""Schemas that files and processes of other versions rely on."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import COUNT_FIELDS, ENTRY_SCHEMA, GROUP_SCHEMA


def test_files_of_the_answer_cache_stay_readable() -> None:
    assert pa.schema([
        ("key", pa.binary(16)),
        ("text", pa.string()), ("numbers", pa.list_(pa.float32())), ("finish_reason", pa.string()),
        ("shortened", pa.bool_()),
        ("input_tokens", pa.int64()), ("output_tokens", pa.int64()), ("answered_at", pa.int64()),
    ]) == ENTRY_SCHEMA  # fmt: skip


def test_counters_of_fragments_keep_their_names() -> None:
    assert {
        "__input_tokens", "__output_tokens", "__cached_tokens", "__saved_tokens", "__shortened",
        "__deduplicated", "__cached", "__truncated", "__asked_again",
    } <= {f.name for f in COUNT_FIELDS}  # fmt: skip


def test_workers_return_rows_in_the_order_of_their_schema() -> None:
    assert GROUP_SCHEMA.names == [
        "row", "text", "numbers", "finish_reason", "input_tokens", "output_tokens", "cached_tokens",
        "engine_seconds", "finished_at", "error_type", "error",
    ]  # fmt: skip
