"""How the Ray side fails: one type, with a kind that the Airflow side maps to its public exceptions."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["input", "model", "cluster", "queue", "gpu_memory", "engine", "stopped", "transient"]


class SliceError(Exception):
    """A slice cannot be answered, for a reason a person can act on.

    kind: a retry cannot succeed after `input` (the request is wrong), `model` (missing or unreadable) or
    `cluster` (this cluster cannot run it). It may succeed after `queue` (no room in time), `gpu_memory`,
    `engine` (a process or a node died), `stopped` (by a user or a signal) or `transient` (anything else).

    log: the process (`node_id`, `pid`) whose log holds the reason when the message does not.
    """

    def __init__(self, message: str, *, kind: Kind, log: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.log = log

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without calling `__init__` again, so that subclasses may have any arguments."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class StorageError(SliceError):
    """A store cannot be read or written now.

    problem: what it is, for people whose command or sensor only looks.
    """

    def __init__(self, what: str, path: str, why: str) -> None:
        super().__init__(
            f"cannot {what} {path}: {why}. Fix that and run the slice again: its finished rows are kept",
            kind="transient",
        )
        self.problem = f"cannot {what} {path}: {why}"


def problem_of(error: Exception) -> str:
    """An error's text, without what to do about a run."""
    return error.problem if isinstance(error, StorageError) else str(error)
