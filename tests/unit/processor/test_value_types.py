"""Which types one column can hold, whatever the order in which they come."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.processor.value_types import (
    TypeMismatch,
    ValueType,
    arrow_type,
    from_arrow,
    merge,
    typed,
)

cell = st.one_of(
    st.none(), st.integers(-(2**55), 2**55), st.floats(allow_nan=False), st.dates(), st.datetimes(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=3),
    st.text(max_size=1), st.just(dt.time(1)),
)  # fmt: skip
cells = st.recursive(
    cell,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, min_size=1),
    max_leaves=3,
)


def ordered(kind: ValueType) -> Any:
    """The type without the order of its fields."""
    if isinstance(kind, dict) and "struct" in kind:
        return {"struct": {name: ordered(kind["struct"][name]) for name in sorted(kind["struct"])}}
    if isinstance(kind, dict) and "list" in kind:
        return {"list": ordered(kind["list"])}
    return kind


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(cells, min_size=2, max_size=6), st.integers())
def test_types_that_fit_into_one_column_do_so_in_any_order(values: list[Any], seed: int) -> None:
    agreed: ValueType = "null"
    kinds: list[ValueType] = []
    for value in values:
        with contextlib.suppress(TypeMismatch):
            kind, _ = typed(value)
            agreed = merge(agreed, kind)
            kinds += [kind, agreed]  # fragments hold values of their time's agreed type
    random.Random(seed).shuffle(kinds)
    merged: ValueType = "null"
    for kind in kinds:
        merged = merge(merged, kind)
        assert arrow_type(from_arrow(arrow_type(kind))) == arrow_type(kind)
    assert ordered(merged) == ordered(agreed)
