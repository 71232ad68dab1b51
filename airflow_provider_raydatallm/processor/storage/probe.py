"""Whether a store can do what publishing relies on: tried at a table's first run, and remembered beside it.

What cannot be tried is a second client's view: network disks that show another machine's files late.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fsspec import AbstractFileSystem

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.storage.filesystem import resolve
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store

#: The file that says that a store passed.
REMEMBERED = "store-ok.json"
#: Prefix of the folder in which a store is tried.
PROBE = "_probe-"
#: Raised when more is asked of stores, or what is remembered changes: they are tried again.
_VERSION = 3
#: How long a listing that does not show a new file is watched, to say how late it is.
_WATCH_SECONDS = 5.0
_WRITERS = 4
_CREATE = "create a file only if it does not exist"


def check_store(store: Store, *targets: Store) -> None:
    """Tries the store in its own folder, and whether its files can be placed in the targets, unless that
    passed before; takes some thirty requests, then one.

    :raises SliceError: naming what the store cannot do, or that it fails.
    """
    if not has_passed(store, *targets):
        try_store(store, *targets)
        remember(store, *targets)


def try_store(store: Store, *targets: Store) -> None:
    """Like `check_store`, without remembering that it passed."""
    passed = _remembered(store)
    if passed is None:
        _try_alone(store)
    for target in targets:
        if resolve(target.url) not in (passed or ()):
            _check_placing_in(target, store)


def remember(store: Store, *targets: Store) -> None:
    """Writes down that a store passed with these targets."""
    addresses = (_remembered(store) or frozenset()) | {resolve(target.url) for target in targets}
    store.put_document(REMEMBERED, {"version": _VERSION, "targets": sorted(addresses)})


def has_passed(store: Store, *targets: Store) -> bool:
    """Whether the store was tried with these targets; takes one request."""
    passed = _remembered(store)
    return passed is not None and {resolve(target.url) for target in targets} <= passed


def check_mounts(store: Store, *targets: Store) -> None:
    """Looks whether a disk was mounted in one of the folders since they were tried; takes no request.

    :raises SliceError: naming both folders and where their file systems are mounted.
    """
    for target in targets:
        if not (store.is_local and target.is_local):
            continue
        one, other = Path(store.root), Path(target.root)
        points = {disk.mount_point(one), disk.mount_point(other)}
        if len(points) > 1 and None not in points:
            why, advice = disk.on_other_mounts(one, other)
            raise SliceError(
                f"files of {one} cannot be published to {other}: {why}", kind="input", advice=advice
            )


def _remembered(store: Store) -> frozenset[str] | None:
    """Targets in which its files can be placed; None for a store that was not tried."""
    with contextlib.suppress(CorruptFileError):
        match store.read_document(REMEMBERED):
            case {"version": version, "targets": list(targets)} if version == _VERSION:
                return frozenset(targets)
    return None


def _try_alone(store: Store) -> None:
    folder = f"{PROBE}{uuid.uuid4().hex}"
    try:
        _check_creating(store, folder)
        _check_listing(store, folder)
        _check_placing(store, folder)
        _check_removing(store, folder)
    finally:
        with contextlib.suppress(SliceError):
            store.remove(folder)


def _check_placing_in(target: Store, store: Store) -> None:
    if type(store.fs) is not type(target.fs):
        raise SliceError(
            f"{target.url} is on other storage than {store.url}, from where files are published",
            kind="input",
            advice="Give a folder on the same disk or object store",
        )
    name = f"{PROBE}{uuid.uuid4().hex}"
    try:
        store.put(name, b"")
        target.place(store, name, name)
    finally:
        for one in (store, target):
            with contextlib.suppress(SliceError):
                one.remove_file(name)
        target.remove_empty("")


def _check_creating(store: Store, folder: str) -> None:
    if not store.is_local and getattr(store.fs.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file:
        raise _lacks(store, _CREATE, "its client looks first and writes then")
    one, other = (f"{who}{uuid.uuid4().hex}".encode() for who in ("one", "other"))
    name = f"{folder}/created"
    try:
        won = [store.create(name, one), store.create(name, other)]
    except SliceError as e:
        if e.kind == "input":
            raise
        store.put(f"{folder}/put", one)  # or the store fails altogether
        raise _lacks(store, _CREATE, e.failure.headline) from e
    if won != [True, False] or store.read(name) != one:
        raise _lacks(store, _CREATE, "a second writer replaced the first's file")
    with ThreadPoolExecutor(_WRITERS) as pool:
        texts = [f"{i}{uuid.uuid4().hex}".encode() for i in range(_WRITERS)]
        results = pool.map(lambda text: store.create(f"{folder}/raced", text), texts)
        wins = [text for text, has_won in zip(texts, results, strict=True) if has_won]
    if len(wins) != 1 or store.read(f"{folder}/raced") != wins[0]:
        raise _lacks(store, _CREATE, f"{len(wins)} of {_WRITERS} writers at once were told that it is theirs")
    store.put(f"{folder}/put", one)
    store.put(f"{folder}/put", other)
    if store.read(f"{folder}/put") != other:
        raise _lacks(store, "show what was just written", "a file that was replaced still reads as before")


def _check_listing(store: Store, folder: str) -> None:
    before = time.monotonic()
    wanted = {"created", "put", "raced"}
    if set(store.names(folder)) == wanted:
        return
    while time.monotonic() - before < _WATCH_SECONDS and set(store.names(folder)) != wanted:
        time.sleep(_WATCH_SECONDS / 20)
    late_s = time.monotonic() - before
    raise _lacks(
        store, "list new files at once", f"a listing did not show one {late_s:.1f} s after it was written"
    )


def _check_placing(store: Store, folder: str) -> None:
    content = store.read(f"{folder}/created")
    store.place(store, f"{folder}/created", f"{folder}/placed")
    if store.read(f"{folder}/placed") != content:
        raise _lacks(store, "link or copy a file", "the copy does not hold what its source holds")
    try:
        store.place(store, f"{folder}/none", f"{folder}/of-none")
    except FileNotFoundError:
        return
    raise _lacks(store, "link or copy a file", "it says that it copied a file that does not exist")


def _check_removing(store: Store, folder: str) -> None:
    store.remove_file(f"{folder}/created")
    if store.read(f"{folder}/created") is not None or "created" in store.names(folder):
        raise _lacks(store, "remove a file", "a removed file is still there")


def _lacks(store: Store, ability: str, why: str) -> SliceError:
    return SliceError(
        f"{store.url} cannot hold tables: the store has to {ability}, and {why}",
        kind="input",
        advice="Use a disk with hard links, or an object store with conditional writes (If-None-Match), such "
        "as S3, GCS, Azure or new MinIO",
    )
