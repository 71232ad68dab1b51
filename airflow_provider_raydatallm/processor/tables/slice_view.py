"""What a slice's folder tells somebody who looks at it: its report, progress, versions and some rows.

The one who asks names a task and the folders that the task's record names. Whoever may edit that record must
not be shown another task's data: a version is shown only when its commit names the task. Read with the
identity of the process that asks. Only `sample` needs pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from airflow_provider_raydatallm.contract.slice_paths import SlicePaths
from airflow_provider_raydatallm.processor.store.versions import PROGRESS, Commits, SliceFolders, Version
from airflow_provider_raydatallm.processor.tables.samples import first_rows

#: How many versions are read: each is a request to the store.
_VERSIONS = 10
#: Of a sample.
_COLUMNS, _CELL_CHARACTERS = 60, 2_000


@dataclass(frozen=True)
class SliceView:
    """
    :param task: DAG and name of the task that asks.
    """

    paths: SlicePaths
    task: dict[str, str]

    def versions(self) -> list[Version]:
        """Returns the newest versions, the latest first.

        :raises SliceError: when the newest commit cannot be read.
        :raises PermissionError: when the task published none of them.
        """
        newest = list(islice(Commits.list(self._folders.metadata).versions(), _VERSIONS))
        own = [v for v in newest if v.body.get("task") == self.task]
        if newest and not own:
            raise PermissionError("another task published this slice, or an older provider did")
        return own

    def progress(self) -> dict[str, Any] | None:
        """Returns the progress of the running or last failed run; None when the slice is published or new."""
        progress = self._folders.metadata.read_json(PROGRESS)
        is_own = isinstance(progress, dict) and progress.get("task") == self.task
        return progress if is_own else None

    def sample(
        self, kind: Literal["published", "quarantined"], rows: int
    ) -> tuple[list[str], list[list[str | None]]]:
        """Returns the names of columns and the first rows of the newest version, as text.

        :raises FileNotFoundError: when there is none.
        """
        version = next(iter(self.versions()), None)
        if version is None:
            raise FileNotFoundError("nothing is published")
        names, lines = first_rows(
            self._folders, version, rows, quarantined=kind == "quarantined", most_columns=_COLUMNS
        )
        return names, [[_text(line[name]) for name in names] for line in lines]

    @property
    def _folders(self) -> SliceFolders:
        return SliceFolders.open(self.paths)


def _text(value: Any) -> str | None:
    """A cell as text, whatever it is: short, and never bytes."""
    if value is None:
        return None
    if isinstance(value, (bytes, memoryview)):
        return f"{len(value):,} bytes"
    text = value if isinstance(value, str) else repr(value)[: _CELL_CHARACTERS * 2]
    return text if len(text) <= _CELL_CHARACTERS else f"{text[:_CELL_CHARACTERS]}…"
