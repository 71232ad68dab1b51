"""How the values of a column are spread: numbers, or the lengths of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.gate import OF_EMPTY
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

#: Beyond these all count as one, and below as zero: powers of ten end soon after.
_LARGEST, _SMALLEST = 1e290, 1e-290
_ZEROTH = 300
_POWERS = np.array([float(f"1e{n - _ZEROTH}") for n in range(2 * _ZEROTH + 1)])


def has_spread(type_: pa.DataType) -> bool:
    """Whether a column of that type holds numbers or texts."""
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or _is_text(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def check_measured_columns(job: SliceJob, fields: Sequence[pa.Field]) -> None:
    """
    :param fields: the answers' columns, as far as they are known.
    :raises SliceError: when a gate looks at a column that is none of them, or of another type.
    """
    types = {field.name: field.type for field in fields}
    for gate in job.quality.gates if types else ():
        if (name := gate.column) is None:
            continue
        if name not in types:
            raise SliceError(
                f"quality.gates says {gate.of!r}, and {name!r} is no column of the answers: they have "
                f"{', '.join(map(repr, types))}",
                kind="input",
            )
        is_measured = _is_text if gate.of.startswith(OF_EMPTY) else has_spread
        if not is_measured(types[name]) and not pa.types.is_null(types[name]):
            known = "a text may be empty" if is_measured is _is_text else "numbers and texts have one"
            raise SliceError(
                f"quality.gates says {gate.of!r}, and {name!r} is a column of type {types[name]}: {known}",
                kind="input",
            )


def count_spread(table: pa.Table, name: str) -> Counter[str]:
    """Counts the rows of each value of a column, which is rounded to two digits, such as "1.2e+03"; of texts,
    those of each length in characters. Values without a finite number are left out."""
    if name not in table.column_names or not has_spread(table.schema.field(name).type):
        return Counter()
    column = table.column(name)
    if _is_text(column.type):
        column = pc.utf8_length(column)
    values = pc.drop_null(column).cast(pa.float64(), safe=False).to_numpy()
    values = np.clip(values[np.isfinite(values)], -_LARGEST, _LARGEST)
    is_zero = np.abs(values) < _SMALLEST
    some = values[~is_zero]
    # Their two digits as an integer, and which power of ten that is times.
    power = np.floor(np.log10(np.abs(some))).astype(np.int64) - 1
    digits = np.rint(some * _POWERS[_ZEROTH - power]).astype(np.int64)
    keys, rows = np.unique(digits * len(_POWERS) + power + _ZEROTH, return_counts=True)
    counts: Counter[str] = Counter({"0": int(is_zero.sum())}) if is_zero.any() else Counter()
    for key, count in zip(keys.tolist(), rows.tolist(), strict=True):
        digit, index = divmod(key, len(_POWERS))
        counts[f"{float(f'{digit}e{index - _ZEROTH}'):.2g}"] += count
    return counts
