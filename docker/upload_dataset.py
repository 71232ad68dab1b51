"""Copies a folder of files into an object store: `python docker/upload_dataset.py FOLDER s3://bucket/prefix`.

Makes the bucket if there is none. Every put is create-only: a file that is there already stays as it is, so
that running this again changes no input under a DAG's feet. Keys and the endpoint come from the environment
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL).
"""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec


def upload(folder: Path, url: str) -> tuple[int, int]:
    """Put every file below `folder` below `url`; how many were put, and how many were there."""
    store, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    bucket = root.partition("/")[0]
    if not store.exists(bucket):
        store.mkdir(bucket)
    put = there = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            store.pipe_file(f"{root}/{file.relative_to(folder).as_posix()}", file.read_bytes(), mode="create")
            put += 1
        except FileExistsError:
            there += 1
    if not put + there:
        raise FileNotFoundError(f"no files in {folder}")
    return put, there


if __name__ == "__main__":
    source, target = sys.argv[1:]
    put, there = upload(Path(source), target)
    sys.stdout.write(f"{target}: {put} files put, {there} already there\n")
