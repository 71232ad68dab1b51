"""Arrow arrays of raw values, built from their buffers: no cast, no parsing."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tests.oracle.cells import is_any_list, is_text, is_uuid
from tests.oracle.raws import edges


def build(kind: pa.DataType, raws: Sequence[Any]) -> pa.Array:
    if pt.is_null(kind):
        return pa.nulls(len(raws))
    if pt.is_dictionary(kind):
        return build(kind.value_type, raws).dictionary_encode().cast(kind)
    if is_uuid(kind):
        return pa.ExtensionArray.from_storage(kind, pa.array(raws, pa.binary(16)))
    if pt.is_struct(kind):
        columns = [build(f.type, [_field_value(f, raw) for raw in raws]) for f in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=_is_null(raws))
    if pt.is_map(kind):
        pairs = list(chain.from_iterable(raw or () for raw in raws))
        keys = build(kind.key_type, [k for k, _ in pairs])
        return pa.MapArray.from_arrays(
            _offsets(raws, pa.int32()), keys, build(kind.item_type, [v for _, v in pairs]), type=kind,
            mask=_is_null(raws),
        )  # fmt: skip
    if pt.is_fixed_size_list(kind):
        absent = [_absent(kind.value_field)] * kind.list_size
        items = build(kind.value_type, list(chain.from_iterable(absent if r is None else r for r in raws)))
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=_is_null(raws))
    if is_any_list(kind):
        items = build(kind.value_type, list(chain.from_iterable(raw or () for raw in raws)))
        large = pt.is_large_list(kind)
        array_of = pa.LargeListArray if large else pa.ListArray
        offsets = _offsets(raws, pa.int64() if large else pa.int32())
        return array_of.from_arrays(offsets, items, type=kind, mask=_is_null(raws))
    return _leaf(kind, raws)


def _leaf(kind: pa.DataType, raws: Sequence[Any]) -> pa.Array:
    if pt.is_temporal(kind):
        return pa.array(raws, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pt.is_decimal(kind):
        return pa.array([raw if raw is None else unscaled(raw, kind.scale) for raw in raws], kind)
    if pt.is_float16(kind):
        return pa.array([raw if raw is None else np.float16(raw) for raw in raws], kind)
    if is_text(kind):
        encoded = [raw.encode() if isinstance(raw, str) else raw for raw in raws]
        plain = pa.array(encoded, pa.binary())
        text = pa.Array.from_buffers(pa.string(), len(plain), plain.buffers())
        return text if kind == pa.string() else text.cast(kind)
    return pa.array(raws, kind)


def unscaled(raw: int, scale: int) -> Decimal:
    return Decimal((raw < 0, tuple(map(int, str(abs(raw)))), -scale))


def _offsets(raws: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(accumulate((len(raw or ()) for raw in raws), initial=0), kind)


def _is_null(raws: Sequence[Any]) -> pa.Array | None:
    return pa.array([raw is None for raw in raws], pa.bool_()) if None in map(type_or_none, raws) else None


def type_or_none(raw: Any) -> Any:
    return None if raw is None else type(raw)


def _field_value(field: pa.Field, raw: Any) -> Any:
    return _absent(field) if raw is None else raw[field.name]


def _absent(field: pa.Field) -> Any:
    """What stands in a required field below a null: any value."""
    kind = field.type
    if field.nullable:
        return None
    if pt.is_struct(kind):
        return {f.name: _absent(f) for f in kind}
    if pt.is_fixed_size_list(kind):
        return [_absent(kind.value_field)] * kind.list_size
    if pt.is_map(kind) or is_any_list(kind):
        return []
    return edges(kind.value_type if pt.is_dictionary(kind) else kind)[0]
