"""Values of a nested column's parts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.processor.input.types.values import items_of


def lists_of_structs() -> pa.Array:
    storage = pa.array([bytes([i] * 16) for i in range(4)], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    structs = pa.StructArray.from_arrays([uuids, pa.array(list("abcd"))], ["u", "t"])
    return pa.ListArray.from_arrays(pa.array([0, 0, None, 2, 4], pa.int32()), structs)


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("end", range(5))
def test_items_are_those_of_lists_that_are_there(start: int, end: int) -> None:
    lists = lists_of_structs()[start:end]  # of [], ..., and a null one over some items
    assert items_of(lists).to_pylist() == [item for one in lists.to_pylist() for item in one or []]
