"""A case of files that are given instead of drawn."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.oracle import rules
from tests.oracle.case import Case, Must, Truth, concat
from tests.oracle.cells import Cell
from tests.oracle.judges import Columns, leaf_types, read_parquet

#: What files hold, by their names.
Files = Mapping[str, Columns]
#: Writes files into a folder.
WriteFiles = Callable[[Path], Files]
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class FaultFile(Case):
    """:ivar told: the issues that tell of the fault, or what is odd.
    :ivar others: another reading, where readers do not agree.
    """

    name: str
    told: str
    must: Must
    write_files: WriteFiles
    prompt: str | None = None
    others: Columns = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    steps: bool = False

    def write(self, folder: Path) -> Truth:
        files = {str(folder / name): columns for name, columns in self.write_files(folder).items()}
        rows = {path: max(map(len, columns.values()), default=0) for path, columns in files.items()}
        return Truth(
            columns=concat([(columns, rows[path]) for path, columns in files.items()]),
            rows=rows, types={}, must=self.must, why=self.told, features=[], others=self.others,
            type_problem=lambda name, kind: rules.UNTYPED if pa.null() in leaf_types(kind) else "",
            views=_views(rows) if all(path.endswith(".parquet") for path in files) else {},
        )  # fmt: skip


def _views(rows: Mapping[str, int]) -> dict[str, Columns]:
    """What readers see in the files, of those that can read all of them."""
    seen = {path: read_parquet(path) for path in rows}
    found: dict[str, Columns] = {}
    for reader in ("pyarrow", "duckdb", "polars"):
        parts = [
            (columns, rows[path])
            for path, views in seen.items()
            if (columns := views[reader].columns) is not None
        ]
        if len(parts) == len(rows):
            found[reader] = concat(parts)
    return found


def local(*when: int, ns: int = 0) -> Cell:
    """A timestamp without a zone: year, month, day, and so on to the microsecond, and nanoseconds."""
    since = dt.datetime(*when) - _EPOCH  # type: ignore[arg-type]
    return ("local", since // dt.timedelta(microseconds=1) * 1000 + ns)


def a_list(*cells: Cell) -> Cell:
    return ("list", tuple(cells))
