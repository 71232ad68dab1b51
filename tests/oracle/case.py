"""A case: what the input files of a slice hold, and what is known of it without us."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tests.oracle.cells import Cell
from tests.oracle.judges import Columns

Must = Literal["publish", "refuse", "either"]
#: Why files with other headers are refused: no single column is to blame.
HEADERS = "headers lack columns of each other"
#: Rows would be asked with an empty text.
LACKING = "a file with rows lacks the column of the prompt"


@dataclass
class Truth:
    """What the files hold.

    :ivar columns: all that must be published, by name, over all files.
    :ivar rows: of each file, by its path.
    :ivar types: of each column, in the files that have it; None where a format has no types.
    :ivar must: whether it must be published, or refused; and why.
    :ivar type_problem: what is wrong with a type that a column is published with, whatever its values are.
    :ivar views: columns as each reader sees them in the files, of readers that can read all of them.
    :ivar others: columns that readers read in two ways: the other one.
    :ivar features: what to count it as.
    """

    columns: Columns
    rows: Mapping[str, int]
    types: Mapping[str, Sequence[pa.DataType]]
    must: Must
    why: str
    type_problem: Callable[[str, pa.DataType], str]
    features: Sequence[str]
    views: Mapping[str, Columns] = field(default_factory=dict)
    others: Columns = field(default_factory=dict)

    @property
    def counted_as(self) -> list[str]:
        return [*self.features, f"must {self.must}"]


class Case(ABC):
    """:ivar prompt: the column that the prompt shows, if any.
    :ivar arguments: of the job.
    :ivar steps: whether files are read in steps of a row or two.
    """

    format: str
    prompt: str | None
    arguments: Mapping[str, Any]
    steps: bool

    @abstractmethod
    def write(self, folder: Path) -> Truth:
        """Writes the files, and reads them with all readers that are not ours."""


def concat(parts: Sequence[tuple[Mapping[str, list[Cell]], int]]) -> Columns:
    """Columns over files, each given with its number of rows; null in those that lack them."""
    names = dict.fromkeys(name for columns, _ in parts for name in columns)
    return {
        name: [cell for columns, rows in parts for cell in columns.get(name, [None] * rows)] for name in names
    }
