"""Cases of all formats: drawn by hypothesis, kept as the bytes that they were drawn by."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hypothesis import strategies as st

from tests.oracle import csv_case, json_case, parquet_case
from tests.oracle.case import Case
from tests.oracle.dice import Dice


class Format(NamedTuple):
    draw: Callable[[Dice], Case]
    #: Bytes that a case is drawn by.
    size: int


FORMATS: dict[str, Format] = {
    "parquet": Format(parquet_case.draw_case, parquet_case.SIZE),
    "csv": Format(csv_case.draw_case, csv_case.SIZE),
    "jsonl": Format(json_case.draw_case, json_case.SIZE),
}


@dataclass(frozen=True)
class Drawn:
    """A case, and what draws it again."""

    format: str
    data: bytes

    @cached_property
    def case(self) -> Case:
        return FORMATS[self.format].draw(Dice(self.data))

    @property
    def token(self) -> str:
        """For `python -m tests.oracle --replay`."""
        return f"{self.format}:{base64.urlsafe_b64encode(zlib.compress(self.data, 9)).decode()}"

    @classmethod
    def from_token(cls, token: str) -> Drawn:
        name, _, packed = token.partition(":")
        return cls(name, zlib.decompress(base64.urlsafe_b64decode(packed)))

    def __repr__(self) -> str:
        return f"{self.case}\nagain: python -m tests.oracle --replay {self.token}"


def cases(name: str) -> st.SearchStrategy[Drawn]:
    size = FORMATS[name].size
    return st.binary(min_size=size, max_size=size).map(lambda data: Drawn(name, data))
