"""How the Ray side fails: one type, with a kind that the Airflow side maps to its public exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["input", "model", "cluster", "queue", "gpu_memory", "engine", "stopped", "transient"]


class SliceError(Exception):
    """A slice cannot be answered, for a reason a person can act on.

    kind, where no retry mends it: `input` (what was asked for is wrong), `model` (it is not there, or is
    none), `cluster` (this cluster cannot run it). Where a retry may succeed: `queue` (no room in time),
    `gpu_memory`, `engine` (a process or a node died), `stopped` (told to), `transient` (something else broke
    on the way).

    log: of which process (`node_id`, `pid`) the log has the reason, where the message has none.
    """

    def __init__(self, message: str, *, kind: Kind = "input", log: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.log = log
