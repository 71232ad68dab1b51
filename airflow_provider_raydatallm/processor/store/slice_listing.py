"""Lists the folders of a table's slices, by names that are taken as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fsspec import AbstractFileSystem

from airflow_provider_raydatallm.processor.storage.filesystem import current_patience, open_fs
from airflow_provider_raydatallm.processor.storage.objects import list_objects

_FIELD = re.compile(r"\{(slice|trial)\}")


def find_folders(template: str) -> Iterator[dict[str, str]]:
    """Yields what stands for `{slice}`, and for `{trial}`, in the address of each folder that exists, in the
    order of their addresses; a field has one value wherever it is.

    :param template: an address. Everything but its fields is a name, also what is a pattern elsewhere.
    """
    fs, path = open_fs(template)
    names = path.rstrip("/").split("/")
    fixed = next((depth for depth, name in enumerate(names) if _FIELD.search(name)), len(names))
    yield from _find(fs, "/".join(names[:fixed]), names[fixed:], {})


def fill(template: str, fields: dict[str, str]) -> str:
    """Returns the address with values for its fields."""
    return _FIELD.sub(lambda field: fields[field[1]], template)


def _find(
    fs: AbstractFileSystem, folder: str, names: Sequence[str], fields: dict[str, str]
) -> Iterator[dict[str, str]]:
    if not names:
        yield fields
        return
    pattern = _pattern(names[0], fields)
    for name in _folders_in(fs, folder):
        if (match := pattern.fullmatch(name)) is not None:
            yield from _find(fs, f"{folder}/{name}", names[1:], fields | match.groupdict())


def _pattern(name: str, fields: dict[str, str]) -> re.Pattern[str]:
    seen = dict.fromkeys(fields)
    pattern = ""
    for index, text in enumerate(_FIELD.split(name)):
        if index % 2 == 0:
            pattern += re.escape(text)
        elif text in fields:
            pattern += re.escape(fields[text])
        else:
            pattern += f"(?P={text})" if text in seen else f"(?P<{text}>.+)"
            seen[text] = None
    return re.compile(pattern, re.DOTALL)


def _folders_in(fs: AbstractFileSystem, folder: str) -> list[str]:
    try:
        found = list_objects(fs, folder, patience=current_patience())
    except (FileNotFoundError, NotADirectoryError):
        if "s3" in fs.protocol:  # where only a bucket can be missing
            raise
        return []
    return sorted(entry.parts[0] for entry in found if entry.is_folder)
