from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.inference.slice_process import cut_blocks


@pytest.mark.parametrize(
    ("tables", "blocks"),
    [([], []), ([0, 0], []), ([3], [3]), ([2, 2, 2], [4, 2]), ([9], [4, 4, 1]), ([4, 0, 4], [4, 4])],
)
def test_blocks_hold_all_rows_in_order_and_so_many_each(tables: list[int], blocks: list[int]) -> None:
    starts = [sum(tables[:i]) for i in range(len(tables))]
    read = [
        pa.table({"n": pa.array(range(n, n + rows), pa.int64())})
        for n, rows in zip(starts, tables, strict=True)
    ]
    cut = list(cut_blocks(iter(read), 4))
    assert [block.num_rows for block in cut] == blocks
    assert [n for block in cut for n in block.column("n").to_pylist()] == list(range(sum(tables)))
