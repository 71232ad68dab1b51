"""A row on its way from a feeder through the workers, and what hands rows to them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker


class Row:
    """
    block, index: where its request is. tokens: of its prompt, int32. params: JSON text of vLLM's sampling
    parameters. key: of its request, where identical ones run once. asked_again: while a worker was silent.
    """

    __slots__ = (
        "asked_again", "avoid", "block", "deaths", "index", "is_done", "is_queued", "key", "max_tokens",
        "params", "returns", "sent_at", "shortened", "together", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        block: Any,
        index: int,
        *,
        tokens: Any,
        params: str,
        max_tokens: int,
        key: bytes | None = None,
        shortened: bool = False,
    ) -> None:
        self.block, self.index, self.key, self.shortened = block, index, key, shortened
        self.tokens, self.params, self.max_tokens = tokens, params, max_tokens
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
    return pa.table(
        {
            "row": pa.array(list(rows), pa.int32()),
            "tokens": pa.ListArray.from_arrays(starts, np.concatenate(tokens)),
            # Mostly one for all rows, and of labels a long one.
            "params": pa.array([row.params for row in rows.values()]).dictionary_encode(),
        }
    )


class RowDispatcher(Protocol):
    def wait_for_room(self) -> None:
        """Waits while enough rows wait to be sent."""

    def hand_in(self, rows: Sequence[Row], *, as_batch: bool = False) -> RowsInWork:
        """:param as_batch: whether they are sent together."""

    def wait(self, rows: RowsInWork) -> list[Row]:
        """Waits until each row is delivered, and returns those that are left unanswered.

        :raises Exception: what kept rows from being delivered.
        """
