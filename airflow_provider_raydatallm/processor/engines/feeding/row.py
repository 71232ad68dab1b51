"""A row on its way from a feeder through the workers, and what hands rows to them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.processor.media.medium import Medium, to_array

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker


#: That a token of a prompt takes in a worker: a Python integer, and its place in a request.
_BYTES_OF_A_TOKEN = 64


class Row:
    """
    block, index: where its request is. tokens: of its prompt, int32. params: JSON text of what a worker is
    asked, such as sampling parameters. adapter: the digest of its LoRA adapter; "" without. media: what it
    shows beside its text; dropped when it is answered. weight: in tokens, by the memory that it takes. key:
    of its request, where identical ones run once. asked_again: while a worker was silent.
    """

    __slots__ = (
        "adapter", "asked_again", "avoid", "block", "deaths", "index", "is_done", "is_queued", "key",
        "max_tokens", "media", "params", "returns", "sent_at", "shortened", "together", "tokens", "weight",
    )  # fmt: skip

    def __init__(
        self,
        block: Any,
        index: int,
        *,
        tokens: Any,
        params: str,
        max_tokens: int,
        adapter: str = "",
        media: Sequence[Medium] = (),
        key: bytes | None = None,
        shortened: bool = False,
    ) -> None:
        self.block, self.index, self.key, self.shortened = block, index, key, shortened
        self.tokens, self.params, self.max_tokens = tokens, params, max_tokens
        self.adapter = adapter
        self.media = media
        self.weight = len(tokens) + sum(medium.size for medium in media) // _BYTES_OF_A_TOKEN
        self.deaths = self.returns = 0
        self.asked_again = self.is_done = self.is_queued = False
        self.sent_at = 0.0
        self.avoid: Worker | None = None
        self.together: RowsInWork | None = None


class RowsInWork:
    """Rows that were handed in together, until each is delivered or left unanswered. as_batch: whether they
    are sent together, also again."""

    def __init__(self, count: int, as_batch: bool = False) -> None:
        self.unsettled, self.as_batch = count, as_batch
        self.left: list[Row] = []
        self.are_settled = threading.Event()


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
    def wait_for_room(self) -> None:
        """Waits while enough rows wait to be sent."""

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> RowsInWork:
        """:param as_batch: whether they are sent together."""

    def wait(self, rows: RowsInWork) -> list[Row]:
        """Waits until each row is delivered, and returns those that are left unanswered.

        :raises Exception: what kept rows from being delivered.
        """
