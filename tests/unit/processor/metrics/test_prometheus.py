"""What anybody who reaches a node's metrics port reads of a slice."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.processor.metrics.prometheus import TAGS, tags_of
from tests.support.slice_jobs import slice_job


@pytest.mark.parametrize(
    "key", ["2026-01-31", 'a\nray_llm_rows_failed{slice="b"} 1', "\u202e\x1b[2J", "\u4e2d"]
)
def test_labels_are_the_table_and_the_key_on_one_line_of_ascii(key: str) -> None:
    job = slice_job(slice_key=key, prompt="my own {x}", model_source="my/model", choices=["mine", "yours"])
    tags = tags_of(job)
    assert tuple(tags) == TAGS
    assert tags["table"] == job.output_path
    assert all(value.isascii() and value.isprintable() for value in tags.values())
    assert not [word for word in ("my own", "my/model", "mine") if word in str(tags)]
