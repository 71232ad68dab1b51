"""A decoded medium, as it travels to a worker; and its Arrow type."""

from __future__ import annotations

import threading
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


class Allowance:
    """What the files of a row may take together. Thread-safe."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._left = most
        self._lock = threading.Lock()

    def take(self, amount: int) -> None:
        """:raises InvalidMedia: when less is left, also ever after: the row has failed."""
        with self._lock:
            self._left -= amount
            if self._left < 0:
                raise InvalidMedia(f"the row's files have more than {self._most:,} {self._what} together")


class RowAllowances:
    """Taken before anything is decoded: a small file may announce much.

    `pixels`: to decode; those of a progressive JPEG count several times. `media_bytes`: of what a row shows a
    model.
    """

    def __init__(self) -> None:
        self.pixels = Allowance(1 << 31, "pixels to decode")
        self.media_bytes = Allowance(1 << 29, "bytes when decoded")


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
