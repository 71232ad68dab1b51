"""How the Ray side fails: one type, with a kind that the Airflow side maps to its public exceptions."""

from __future__ import annotations

from typing import Literal

Kind = Literal["input", "cluster", "run", "stopped"]


class SliceError(Exception):
    """A slice cannot be answered, for a reason a person can act on.

    kind: `input` (what was asked for is wrong: no retry mends it), `cluster` (this cluster cannot run it),
    `run` (something broke on the way: a retry may succeed), `stopped` (the job was told to stop).
    """

    def __init__(self, message: str, *, kind: Kind = "input") -> None:
        super().__init__(message)
        self.kind: Kind = kind
