"""A row on its way from a feeder through the workers, and what hands rows to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.columns import CARRIED_ROW_FIELD, ROW_ID_FIELDS
from airflow_provider_raydatallm.processor.media.medium import Medium, to_array

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker


#: That a token of a prompt takes in a worker: a Python integer, and its place in a request.
_BYTES_OF_A_TOKEN = 64


@dataclass(slots=True)
class RowRequest:
    """
    unit, offset: the row's id. text: JSON. carried: its input row, where postprocess needs it. files: the
    content of its images or recordings. key: where identical requests run once.
    """

    unit: int
    offset: int
    text: str
    carried: str | None = None
    files: Sequence[bytes] = ()
    key: bytes | None = None

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.text) + len(self.carried or "") + sum(map(len, self.files))


class Row:
    """
    unit, offset: its id. tokens: of its prompt, int32. params: JSON text of what a worker is asked, such as
    sampling parameters. adapter: the digest of its LoRA adapter; "" without. media: what it shows beside its
    text; dropped when it is answered. weight: in tokens, by the memory that it takes. carried, key: of its
    `RowRequest`. asked_again: while a worker was silent. batch: what rows share that are sent together.
    """

    __slots__ = (
        "adapter", "asked_again", "avoid", "batch", "carried", "deaths", "is_done", "is_queued", "key",
        "max_tokens", "media", "offset", "params", "returns", "sent_at", "shortened", "tokens", "unit",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        unit: int,
        offset: int,
        *,
        tokens: Any,
        params: str,
        max_tokens: int,
        adapter: str = "",
        media: Sequence[Medium] = (),
        carried: str | None = None,
        key: bytes | None = None,
        shortened: bool = False,
    ) -> None:
        self.unit, self.offset, self.carried, self.key = unit, offset, carried, key
        self.tokens, self.params, self.max_tokens = tokens, params, max_tokens
        self.adapter, self.media, self.shortened = adapter, media, shortened
        kept = sum(medium.size for medium in media) + len(carried or "")
        self.weight = len(tokens) + kept // _BYTES_OF_A_TOKEN
        self.deaths = self.returns = 0
        self.asked_again = self.is_done = self.is_queued = False
        self.sent_at = 0.0
        self.avoid: Worker | None = None
        self.batch: object | None = None


def ids_of(rows: Sequence[Row | RowRequest]) -> pa.Table:
    """The rows' ids, and their input rows where they carry these: the first columns of answers."""
    columns: list[list[Any]] = [[row.unit for row in rows], [row.offset for row in rows]]
    fields = list(ROW_ID_FIELDS)
    if any(row.carried is not None for row in rows):
        columns.append([row.carried for row in rows])
        fields.append(CARRIED_ROW_FIELD)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)],
        schema=pa.schema(fields),
    )


def call_table(rows: Mapping[int, Row]) -> pa.Table:
    """What a worker takes: rows by their numbers."""
    tokens = [row.tokens for row in rows.values()]
    starts = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
    table = pa.table(
        {
            "row": pa.array(list(rows), pa.int32()),
            "tokens": pa.ListArray.from_arrays(starts, np.concatenate(tokens)),
            # Mostly one for all rows, and of labels a long one.
            "params": pa.array([row.params for row in rows.values()]).dictionary_encode(),
        }
    )
    media = [row.media for row in rows.values()]
    return table.append_column("media", to_array(media)) if any(media) else table


class RowDispatcher(Protocol):
    """:raises Exception: from each method, what kept rows from being delivered."""

    def wait_for_room(self) -> None:
        """Waits while enough rows wait to be sent."""

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> None:
        """:param as_batch: whether they are sent together."""

    def drain(self) -> None:
        """Waits until each row that was handed in is delivered, or left unanswered."""
