from __future__ import annotations

from airflow_provider_raydatallm.processor.engines.vllm.token_lengths import _sample_rows
from airflow_provider_raydatallm.processor.store.ledger import count_rows


def test_sample_is_of_the_whole_slice() -> None:
    work = [(index, [(0, 1000)]) for index in range(31)]
    chosen = _sample_rows(work)
    assert [index for index, _ in chosen] == [i * 31 // 16 for i in range(16)]
    # Large units give more of the rows.
    large, small = _sample_rows([(0, [(0, 9000)]), (1, [(0, 1000)])])
    assert [round(count_rows(spans), -2) for _, spans in (large, small)] == [900, 100]
