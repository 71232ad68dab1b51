"""What the slices of a table show, from their commits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

from airflow_provider_raydatallm.contract.result.errors import SliceError, StorageError
from airflow_provider_raydatallm.contract.slice_paths import (
    SLICE,
    SliceAddress,
    slice_paths,
    slice_template,
)
from airflow_provider_raydatallm.processor.storage.filesystem import explaining
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.slice_listing import find_folders
from airflow_provider_raydatallm.processor.store.versions import Version, newest_version

#: A key, as it is compared: whether it is a date, and that, or its text.
_Place = tuple[bool, dt.datetime | str]


def newest_versions(
    of: SliceAddress, slice_format: str, *, before: bool = False, same_weekday: bool = False
) -> Iterator[Version]:
    """Yields the versions of a table's slices, the latest first: by their dates, and by their keys where
    these are none. A slice whose commit is damaged is left out, and one whose folder is another's.

    :param of: one slice.
    :param slice_format: of keys that are dates.
    :param before: only slices before that one, with keys of the same kind.
    :param same_weekday: only slices of its day of the week: none where its key is no date.
    :raises StorageError: when the store cannot be read now.
    """
    own = _place(of.slice_key, slice_format)
    places = {key: _place(key, slice_format) for key in _keys(of)}
    if before:
        places = {key: place for key, place in places.items() if place[0] == own[0] and place < own}
    if same_weekday:
        day = _weekday(own)
        places = {key: place for key, place in places.items() if day is not None and _weekday(place) == day}
    for key in sorted(places, key=lambda key: places[key], reverse=True):
        try:
            version = newest_version(Store(replace(of, slice_key=key).paths.metadata))
        except StorageError:
            raise
        except SliceError:
            continue
        # "sales-b-2026-01-31", the slice of "sales-b-{slice}", has a name as a slice of "sales-{slice}" has.
        if version is not None and version.body.get("slice_key") in (None, key):
            yield version


def _keys(of: SliceAddress) -> list[str]:
    """Those of folders that may be of the table's slices."""
    metadata_path = of.metadata_path if of.trial is None else None
    template = slice_paths(slice_template(of.output_path, of.trial), metadata_path).metadata
    above, _, rest = template.partition(SLICE)
    with explaining("list", above):
        return [unquote(fields["slice"]) for fields in find_folders(above + SLICE + rest.partition("/")[0])]


def _weekday(place: _Place) -> int | None:
    return place[1].weekday() if isinstance(place[1], dt.datetime) else None


def _place(key: str, slice_format: str) -> _Place:
    try:
        return True, dt.datetime.strptime(key, slice_format)
    except ValueError:
        return False, key
