"""A decoded medium, as it travels to a worker; and its Arrow type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

#: Of a row in a call: what `Medium` has.
MEDIUM_TYPE = pa.struct([
    pa.field("kind", pa.string()),
    pa.field("shape", pa.list_(pa.int32())),
    pa.field("data", pa.large_binary()),
])  # fmt: skip


class InvalidMedia(ValueError):
    """A file that cannot be shown to a model; the message says why."""


class MediaUnavailable(Exception):
    """A file that cannot be read, or not now; the message says why."""


@dataclass(frozen=True)
class Medium:
    """
    :param kind: by vLLM's name: `image` or `audio`.
    :param shape: of the array: height, width and channels of an image, the samples of a recording.
    :param data: its numbers, 8 bits each for an image and 16 for a recording, in C order.
    """

    kind: str
    shape: tuple[int, ...]
    data: Any

    @property
    def size(self) -> int:
        return len(self.data)


def to_array(rows: Sequence[Sequence[Medium]]) -> pa.Array:
    """The media of rows, as a column."""
    values = [[{"kind": m.kind, "shape": m.shape, "data": m.data} for m in row] for row in rows]
    return pa.array(values, pa.list_(MEDIUM_TYPE))


def from_array(column: pa.ChunkedArray) -> list[list[Medium]]:
    """The media of a column's rows, whose data stays where Arrow has it."""
    return [
        [
            Medium(
                medium["kind"].as_py(),
                tuple(medium["shape"].as_py()),
                memoryview(medium["data"].as_buffer()),
            )
            for medium in row.values or ()
        ]
        for row in column
    ]
