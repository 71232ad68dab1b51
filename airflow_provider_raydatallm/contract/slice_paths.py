"""Where a slice's files lie.

The table's folders hold Parquet files and an empty `_SUCCESS`, nothing else: any reader may read them as they
are. Everything else lies beside the table:

    <table>/ds=2026-01-31/              part-....parquet, _SUCCESS
    <table>.quarantine/ds=2026-01-31/   rows that failed, a table of its own
    <table>.ray_llm/ds=2026-01-31/      plans, leases, fragments, commits, reports, staged and kept files
    <table>.trial/first-100/            trial runs: tables of their own
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from airflow_provider_raydatallm.contract.addresses import canonical
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place

METADATA, QUARANTINE, TRIAL = ".ray_llm", ".quarantine", ".trial"
#: Stands for a slice's key in an address.
SLICE = "{slice}"
#: The document that says to which table a folder belongs (`processor.store.marks`).
MARK = "table.json"


@dataclass(frozen=True)
class SlicePaths:
    """The folders of one slice. `staging`, of staged and kept files, is on the table's own storage, wherever
    the metadata lies."""

    table: str
    metadata: str
    staging: str
    quarantine: str

    def report(self, version_number: int) -> str:
        """Path of a published version's report."""
        return f"{self.metadata}/{report_name(version_number)}"

    @property
    def of_table(self) -> SlicePaths:
        """The folders that hold those of all slices."""
        return SlicePaths(
            *(p.rpartition("/")[0] for p in (self.table, self.metadata, self.staging, self.quarantine))
        )


@dataclass(frozen=True)
class SliceAddress:
    """A slice by what says where it lies: the arguments of its task, or what a person types.

    :ivar output_path: the operator's; the table's folder, or with `{slice}`.
    :ivar trial: name of a trial, whose slices are in a table of its own, with everything beside it.
    """

    output_path: str
    slice_key: str
    metadata_path: str | None = None
    quarantine_path: str | None = None
    trial: str | None = None

    @classmethod
    def typed(cls, output_path: str, slice_key: str, metadata_path: str | None = None) -> SliceAddress:
        """A slice as a person names it, who may name a trial's table as any other."""
        table, _, folder = slice_template(output_path).rpartition("/")
        trials, _, trial = table.rpartition("/")
        if not trials.endswith(TRIAL):
            return cls(output_path, slice_key, metadata_path)
        return cls(f"{trials.removesuffix(TRIAL)}/{folder}", slice_key, trial=trial)

    @property
    def slice_path(self) -> str:
        """Folder of the published slice; `slice_folder` says where it is."""
        return slice_folder(self.output_path, self.slice_key, self.trial)

    @property
    def output_table(self) -> str:
        """The table's folder, which holds those of its slices; also of a trial."""
        return slice_folder(self.output_path, self.slice_key).rpartition("/")[0]

    @property
    def paths(self) -> SlicePaths:
        if self.trial is not None:
            return slice_paths(self.slice_path)
        return slice_paths(self.slice_path, self.metadata_path, self.quarantine_path)

    @property
    def has_tables_for_slices(self) -> bool:
        """Whether each slice is a table of its own: `{slice}` is above the last folder."""
        return SLICE in self.output_path.rstrip("/").rpartition("/")[0]

    @property
    def table_paths(self) -> SlicePaths:
        """The folders of the table that readers read as one."""
        return self.paths if self.has_tables_for_slices else self.paths.of_table


def report_name(version_number: int) -> str:
    return f"reports/report-{version_number:06}.json"


def slice_folder(output_path: str, slice_key: str, trial: str | None = None) -> str:
    """The folder of a slice in its table: `output_path` with the key for `{slice}`, else
    `output_path/ds=KEY`.

    :param trial: name of a trial, whose slices are in a table of its own.

    :raises ValueError: when the table would be the root of a bucket or disk, which has no place beside it.
    """
    return slice_template(output_path, trial).replace(SLICE, encode_slice_key(slice_key))


def slice_template(output_path: str, trial: str | None = None) -> str:
    """The folder of any slice, with `{slice}` where its key stands; see `slice_folder`."""
    root = output_path.rstrip("/")
    path = root if SLICE in root else f"{root}/ds={SLICE}"
    table, _, folder = path.rpartition("/")
    scheme, _, inside = table.rpartition("://")
    if not (inside.strip("/") if scheme in ("", "file") else inside.strip("/").partition("/")[2]):
        raise ValueError(
            f"output_path {output_path!r} makes the root of a bucket or disk the table, and there is no "
            "place beside it for metadata and quarantine: give a folder in it"
        )
    if table.endswith("/."):
        raise ValueError(f"output_path {output_path!r} has '.' for the table's name: give the folder itself")
    return path if trial is None else f"{table}{TRIAL}/{trial}/{folder}"


def slice_paths(
    slice_path: str, metadata_path: str | None = None, quarantine_path: str | None = None
) -> SlicePaths:
    """The folders of the slice whose folder in the table is `slice_path`.

    :param metadata_path: folder of the table's metadata, instead of the one beside the table.
    :param quarantine_path: likewise, of its quarantine.
    """
    table, _, folder = slice_path.rstrip("/").rpartition("/")
    return SlicePaths(
        f"{table}/{folder}",
        f"{(metadata_path or table + METADATA).rstrip('/')}/{folder}",
        f"{table}{METADATA}/{folder}",
        f"{(quarantine_path or table + QUARANTINE).rstrip('/')}/{folder}",
    )


def check_folders_above(table: str, columns: Iterable[str]) -> None:
    """Readers of a table take each folder `name=value` in its address for a column of all of its rows.

    :param table: the address of a table, or of its quarantine.
    :raises SliceError: when a published column has that name.
    """
    names = {column.casefold(): column for column in columns}
    for folder in canonical(table).split("/"):
        name, separator, _ = folder.partition("=")
        column = names.get(unquote(name).casefold())
        if separator and column is not None:
            raise SliceError(
                f"the slice publishes a column {column!r}, and its table {table} lies below the folder "
                f"{folder!r}: many readers would show the folder's value in that column",
                kind="input",
                advice="Choose another output_path, rename the column, or leave it out with columns=",
                place=Place(column=column),
            )


def encode_slice_key(key: str) -> str:
    """Percent-encodes the characters of a key that mean something in a path or to a Hive reader."""
    encoded = quote(key, safe=" -_.~+@,!'()$;")
    return {".": "%2E", "..": "%2E%2E"}.get(encoded, encoded)
