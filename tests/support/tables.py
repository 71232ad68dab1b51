"""Tables that tests write, have answered and look at. Only the output is the product's; `held_engine` says
what lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.airflow_rest import LIMIT, wait_for

#: Of a slice; four batches.
ROWS = 40


class Table:
    """A table of the DAGs' root folder; the runs' Param `table` names it."""

    def __init__(self, root: Path, name: str) -> None:
        self.name, self.folder = name, root / name
        self._control = root / name / "out.control"
        self._control.mkdir(parents=True)

    def write(self, *slices: str, names: list[str] | None = None) -> None:
        for key in slices:
            folder = self.folder / "in" / f"ds={key}"
            folder.mkdir(parents=True)
            rows = {"id": range(ROWS), "name": names or _names(key)}
            pq.write_table(pa.table(rows), folder / "rows.parquet")

    def replace_input(self, key: str) -> None:
        """Its rows are others now."""
        file = self.folder / "in" / f"ds={key}" / "rows.parquet"
        pq.write_table(pa.table({"id": range(ROWS), "name": [f"other {n}" for n in _names(key)]}), file)

    def rows_right(self, key: str) -> bool:
        """Whether the slice is published, with each input row once, in order, beside its own answer."""
        folder = self.folder / "out" / f"ds={key}"
        if not (folder / "_SUCCESS").exists():
            return False
        rows: list[dict[str, Any]] = pq.read_table(folder, partitioning=None).to_pylist()
        return rows == [{"id": i, "name": n, "answer": f"Who is {n}?"} for i, n in enumerate(_names(key))]

    def has_output(self, key: str) -> bool:
        """Whether readers find any data of the slice."""
        return any((self.folder / "out" / f"ds={key}").glob("*.parquet"))

    def version(self, key: str) -> int:
        """Number of the version that the slice's folder shows."""
        [name] = {p.name.split("-")[1] for p in (self.folder / "out" / f"ds={key}").glob("*.parquet")}
        return int(name)

    # --- The engine ---

    def hold(self, key: str, batches: int = 0) -> None:
        """Let the engine answer so many batches of the slice, over all jobs, and no more until `release`."""
        hold = self._control / f"{key}.hold"
        part = hold.with_suffix(".part")
        part.write_text(str(batches))
        part.replace(hold)

    def release(self, key: str) -> None:
        (self._control / f"{key}.hold").unlink()

    def heal(self, key: str) -> None:
        """No row of the slice fails any more."""
        (self._control / f"{key}.heals").touch()

    def answered(self, key: str) -> list[tuple[str, int]]:
        """Batches that an engine answered, in order: Ray job, rows."""
        journal = self._control / f"{key}.journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [(job, int(rows)) for job, rows in map(str.split, lines)]

    def working_jobs(self, *keys: str) -> list[str]:
        """Ray jobs whose engine answered rows of these slices, in order."""
        return list(dict.fromkeys(job for key in keys for job, _ in self.answered(key)))

    def wait_answered(self, key: str, batches: int, timeout: float = LIMIT) -> None:
        wait_for(
            lambda: len(self.answered(key)) >= batches or None, timeout,
            f"{batches} answered batches of {self.name} {key}", lambda: self.answered(key),
        )  # fmt: skip


def _names(key: str) -> list[str]:
    return [f"{key} row {i}" for i in range(ROWS)]
