from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.engines.base import answer_table
from airflow_provider_raydatallm.processor.inference.fragment_writers import RowWriter
from airflow_provider_raydatallm.processor.inference.pipeline import WriterSink
from airflow_provider_raydatallm.processor.request.answers.shape import TextParser
from tests.support.in_process import job_of


class Nowhere(RowWriter):
    def begin_task(self, task: str) -> bool:
        return False

    def _receive(self, *rows: Any) -> None:
        pass

    def _put_died(self, ids: pa.Table) -> None:
        pass


def test_sink_tells_which_answers_are_invalid_so_that_they_are_not_kept_for_other_slices() -> None:
    requests = pa.table({"__unit": [0, 0, 1, 1], "__offset": [0, 1, 0, 1]})
    answers = answer_table(requests, text=["yes", "well", None, "oh"], error=[None, None, "too long", None])
    job = job_of(input_path="/i", output_path="/o", choices=["yes", "no"])
    delivered = WriterSink(TextParser(job, None), Nowhere())(answers)
    assert delivered.to_pylist() == [{"rows": 4, "invalid": [1, 3]}]
