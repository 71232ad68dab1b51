"""A few rows of a published slice, or of its quarantine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow_provider_raydatallm.processor.store.published import locate_files
from airflow_provider_raydatallm.processor.store.versions import SliceFolders, Version

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

#: With more values than this, a column holds texts rather than labels.
_MOST_LABELS = 50


def sample_rows(
    folders: SliceFolders, version: Version, rows: int, *, quarantined: bool = False
) -> list[dict[str, Any]]:
    """Returns the first rows of a version, or of those that failed."""
    dataset = _dataset(folders, version, quarantined=quarantined)
    return [] if dataset is None else dataset.head(rows).to_pylist()


def label_shares(folders: SliceFolders, version: Version) -> dict[str, float] | None:
    """Returns the share of answered rows that have each label, one or several; None where they are no
    labels."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = version.body["output_column"]
    dataset = _dataset(folders, version, quarantined=False)
    if dataset is None or column not in dataset.schema.names:
        return None
    kind = dataset.schema.field(column).type
    are_several = pa.types.is_list(kind)
    if not pa.types.is_string(_value_type(kind)):
        return None
    rows, counts = 0, Counter[str]()
    for batch in dataset.to_batches(columns=[column]):
        answers = batch.column(0).drop_null()
        rows += len(answers)
        if are_several:
            answers = pc.list_flatten(answers)
        if pa.types.is_dictionary(answers.type):
            answers = answers.dictionary_decode()
        for item in pc.value_counts(answers).to_pylist():
            counts[item["values"]] += item["counts"]
        if len(counts) > _MOST_LABELS:
            return None
    return {label: count / rows for label, count in counts.most_common()}


def _value_type(data_type: pa.DataType) -> pa.DataType:
    """Of a list, or a dictionary."""
    import pyarrow as pa

    is_nested = pa.types.is_dictionary(data_type) or pa.types.is_list(data_type)
    return data_type.value_type if is_nested else data_type


def _dataset(folders: SliceFolders, version: Version, *, quarantined: bool) -> pyarrow.dataset.Dataset | None:
    import pyarrow.dataset

    files = locate_files(folders, version)
    wanted = version.quarantine if quarantined else version.files
    if not wanted:
        return None
    store = files[wanted[0]][0]
    paths = [files[f][0].path(files[f][1]) for f in wanted]
    return pyarrow.dataset.dataset(paths, filesystem=store.fs, format="parquet")
