from __future__ import annotations

import pyarrow as pa

from airflow_provider_raydatallm.processor.answer_schemas import conform, unify_schemas


def test_lists_without_a_value_stay_valid_beside_other_columns() -> None:
    empty = pa.array(
        [{"l": [None, None], "n": 1}], pa.struct([("l", pa.list_(pa.null())), ("n", pa.int64())])
    )
    first = pa.table({"v": empty, "w": pa.array([[None, None]], pa.list_(pa.null()))})
    other = pa.table({"v": [{"n": 0.5}], "x": [1]})
    table = conform(first, unify_schemas([first.schema, other.schema]))
    table.validate(full=True)
    assert table.to_pylist() == [{"v": {"l": [None, None], "n": 1.0}, "w": [None, None], "x": None}]
