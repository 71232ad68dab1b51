"""Which rows of a staged version a person had asked again: a document in its checkpoint.

Once it is there, the version is rejected: whoever finds it discards the version, and nobody commits it. It
says up to which epoch what runs wrote of these rows does not count, so that it never concerns a later answer,
and may stay as long as the checkpoint does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.columns import MAX_UNIT_ROWS
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.file_names import (
    LAST_NUMBER,
    PLAN_BYTES,
    staged_of_asked_again,
)
from airflow_provider_raydatallm.processor.store.ledger import AskedRows, position
from airflow_provider_raydatallm.processor.store.spans import Spans, merge_spans
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion

_FORMAT = 1
_UnitId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Offset = Annotated[int, Field(ge=0, le=MAX_UNIT_ROWS)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    format: Annotated[int, Field(ge=_FORMAT, le=_FORMAT)]
    #: As the person wrote it.
    condition: str
    last_epoch: Annotated[int, Field(ge=0, le=LAST_NUMBER)]
    #: By unit: start and stop of each range, one after the other.
    rows: dict[_UnitId, list[_Offset]]


def put_asked_again(
    metadata: Store, staged: StagedVersion, condition: str, rows: Mapping[str, Spans]
) -> None:
    """Rejects a staged version, and has rows of it asked again. An earlier decision counts no more.

    :param rows: spans of offsets, by the ids of their units.
    """
    document = _Document(
        format=_FORMAT,
        condition=condition,
        last_epoch=staged.version.epoch,
        rows={unit: spans.ravel().tolist() for unit, spans in rows.items()},
    )
    metadata.put_document(staged.asked_again, document.model_dump())


def is_rejected(metadata: Store, staged: StagedVersion) -> bool:
    """Whether somebody had rows of its answers asked again, and so it is to be discarded: as this version, or
    as another one with the same answers, such as one with other columns beside them.

    :raises SliceError: when a decision cannot be read.
    """
    folder = staged.asked_again.rpartition("/")[0]
    decisions = [name for name in metadata.names(folder) if staged_of_asked_again(name)]
    return any(
        read_asked_again(metadata, f"{folder}/{name}", {}).last_epoch >= staged.version.epoch
        for name in decisions
    )


def read_asked_again(metadata: Store, name: str, units: Mapping[str, int]) -> AskedRows:
    """
    :param name: of the document.
    :param units: plan indices by unit id.
    :raises SliceError: when it cannot be read.
    """
    try:
        document = _Document.model_validate(metadata.read_document(name, PLAN_BYTES))
        spans = [_positions(units[unit], offsets) for unit, offsets in document.rows.items() if unit in units]
    except (CorruptFileError, ValidationError, ValueError) as e:
        raise SliceError(
            f"{metadata.path(name)} says which rows are asked again, and is damaged, or another version of "
            "the provider wrote it",
            kind="input",
            advice="Remove it to keep the answers of all rows",
        ) from e
    return AskedRows(document.last_epoch, merge_spans(np.concatenate([np.empty((0, 2), np.int64), *spans])))


def _positions(unit: int, offsets: list[int]) -> Any:
    spans = np.array(offsets, np.int64).reshape(-1, 2)
    if not (spans[:, 0] < spans[:, 1]).all():
        raise ValueError("it has a range without rows")
    return position(unit, spans)
