"""Copies a folder of files into an object store: `python docker/upload_dataset.py FOLDER s3://bucket/prefix`.

Creates the bucket if it is missing. Every put is create-only: existing files stay as they are, so another run
never changes the input of a DAG. Keys and the endpoint come from the environment
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL).
"""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec


def upload(folder: Path, url: str) -> tuple[int, int]:
    """Copy the files of `folder` to `url`. Returns how many it copied and how many were there already.

    Raises FileNotFoundError if `folder` has no files.
    """
    store, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    bucket = root.partition("/")[0]
    if not store.exists(bucket):
        store.mkdir(bucket)
    copied = existing = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            store.pipe_file(f"{root}/{file.relative_to(folder).as_posix()}", file.read_bytes(), mode="create")
            copied += 1
        except FileExistsError:
            existing += 1
    if not copied + existing:
        raise FileNotFoundError(f"no files in {folder}")
    return copied, existing


if __name__ == "__main__":
    source, target = sys.argv[1:]
    copied, existing = upload(Path(source), target)
    sys.stdout.write(f"{target}: {copied} files copied, {existing} already there\n")
