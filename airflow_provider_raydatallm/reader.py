"""Reading published slices: one version, never a mix, whatever is being replaced meanwhile.

Any reader may read a slice's folder as it is; the docs say what holds for it. These functions go by the
newest commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store import versions

if TYPE_CHECKING:
    import pyarrow.dataset


def published_files(slice_path: str, *, version: int | None = None) -> list[str]:
    """Paths (or URLs) of the Parquet files of a published slice, in the order of its rows.

    :param slice_path: the slice's folder, `output_path` of the report.
    :param version: an older version, which `keep_versions` kept; the newest by default.
    :raises FileNotFoundError: when nothing is published there, or that version was not kept.
    """
    store = Store(slice_path)
    paths = _paths(store, version)
    return paths if store.is_local else [store.fs.unstrip_protocol(p) for p in paths]


def published_dataset(slice_path: str, *, version: int | None = None) -> pyarrow.dataset.Dataset:
    """The rows of a published slice as a pyarrow dataset. See `published_files`."""
    import pyarrow.dataset

    store = Store(slice_path)
    return pyarrow.dataset.dataset(_paths(store, version), filesystem=store.fs, format="parquet")


def _paths(store: Store, version: int | None) -> list[str]:
    newest = versions.current(store)
    if newest is None:
        raise FileNotFoundError(f"no slice is published in {store.url}")
    if version is None or version == newest.number:
        folder, found = "", newest
    else:
        kept = store.read_document(versions.commit_name(version))
        if kept is None:
            raise FileNotFoundError(
                f"version {version} of {store.url} is not kept; the newest is {newest.number}"
            )
        folder, found = f"{versions.VERSIONS}/{version:06}/", versions.Version(version, **kept)
    return [store.path(folder + f["path"]) for f in found.data_files]
