"""What becomes of answers in flight when a slice fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.row import Row
from airflow_provider_raydatallm.processor.engines.http.dispatcher import HttpDispatcher


class FailingClient:
    """Its slice fails while an answer is on its way."""

    failure: SliceError | None = None

    async def answer(self, body: str, max_tokens: int) -> dict[str, Any] | None:
        self.failure = SliceError("no more", kind="input")
        await asyncio.sleep(0.5)
        return {"text": "paid for"}


def take_rows(dispatcher: HttpDispatcher) -> None:
    while True:
        dispatcher.wait_for_room()


@pytest.mark.slow
@pytest.mark.parametrize(("longest_s", "delivered"), [(0.05, 0), (30.0, 1)])
def test_answers_in_flight_are_waited_for_as_long_as_a_request_may_take(
    longest_s: float, delivered: int
) -> None:
    groups: list[Any] = []
    dispatcher = HttpDispatcher(
        FailingClient(), 1, longest_s, on_group=lambda rows, table: groups.append(rows)
    )
    dispatcher.hand_in([Row(0, 0, tokens=[], params="{}", max_tokens=1)])
    with pytest.raises(SliceError, match="no more"):
        take_rows(dispatcher)
    assert len(groups) == delivered
