"""Copies of adapters on a node, each in a folder that is named after its content.

An engine reads a copy, so what changes in an adapter's own folder meanwhile never reaches it. A copy appears
whole or not at all, and several processes may make the same one at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.adapters.adapter import CONFIG, WEIGHTS, Adapter
from airflow_provider_raydatallm.processor.storage import disk
from airflow_provider_raydatallm.processor.storage.store import Store

_FILES = (CONFIG, WEIGHTS)
#: Digests by address and etags: what lies in an object store is read once a node.
_BY_ETAG = "by-etag"
_SCRATCH = "_tmp-"
_CHUNK_BYTES = 4 << 20
#: After which a copy that no engine asked for is removed, and what is left of a killed process.
_UNUSED_SECONDS = 30 * 86400.0
_SCRATCH_SECONDS = 86400.0


def copies_folder() -> Path:
    """Beside what vLLM keeps on a node."""
    root = os.environ.get("VLLM_CACHE_ROOT") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "vllm"
    )
    return Path(os.path.expanduser(root)) / "ray-llm-adapters"


def copy_adapter(name: str, url: str) -> tuple[str, Path]:
    """Copies an adapter to this node, as it is now. Returns its digest and the copy.

    :raises SliceError: naming it, when it cannot be read, or the copy cannot be written.
    """
    with _explained(name, url):
        store, root = Store(url), copies_folder()
        etags = _etags(store)
        known = root / _BY_ETAG / hashlib.sha256(f"{url} {etags}".encode()).hexdigest()[:32]
        if etags is not None and known.is_file():
            digest = known.read_text()
            if (copy := _intact(root, digest)) is not None:
                return digest, copy
        digest, copy = _copy(store, root)
        if etags is not None and _etags(store) == etags:
            disk.make_folder(known.parent)
            _write_whole(known, digest)
        return digest, copy


def copy_of(adapter: Adapter) -> Path:
    """Returns this node's copy, which is made if it is missing.

    :raises SliceError: naming it; of kind `transient` when it was replaced since the run read it.
    """
    with _explained(adapter.name, adapter.url):
        root = copies_folder()
        if (copy := _intact(root, adapter.digest)) is not None:
            return copy
        digest, copy = _copy(Store(adapter.url), root)
        if digest != adapter.digest:
            raise SliceError(
                f"{adapter} was replaced since this run read it",
                kind="transient",
                advice="Run the slice again, by what it holds now",
            )
        return copy


def _etags(store: Store) -> list[str] | None:
    """None where the store has none; a disk's times do not say enough."""
    infos = [store.fs.info(store.path(name)) for name in _FILES]
    etags = [info.get("ETag") or info.get("etag") for info in infos]
    return None if store.is_local or not all(etags) else [str(etag) for etag in etags]


def _copy(store: Store, root: Path) -> tuple[str, Path]:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_old(root)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=root))
    try:
        for name in _FILES:
            with store.fs.open(store.path(name), "rb") as source, open(scratch / name, "xb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
                target.flush()
                os.fsync(target.fileno())
        digest = _digest(scratch)
        copy = root / digest
        try:
            scratch.rename(copy)
        except OSError:  # it is there: another process was faster, or it is damaged
            if _intact(root, digest) is None:
                copy.rename(scratch.with_name(f"{scratch.name}-damaged"))
                scratch.rename(copy)
        return digest, copy
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _intact(root: Path, digest: str) -> Path | None:
    """The copy of this content, if it is there and whole."""
    copy = root / digest
    try:
        if _digest(copy) != digest:
            return None
        os.utime(copy)
    except OSError:
        return None
    return copy


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for name in _FILES:
        with open(folder / name, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:32]


def _write_whole(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=_SCRATCH, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def _remove_old(root: Path) -> None:
    for folder in root.iterdir():
        limit_s = _SCRATCH_SECONDS if folder.name.startswith(_SCRATCH) else _UNUSED_SECONDS
        with contextlib.suppress(OSError):
            if folder.name != _BY_ETAG and time.time() - folder.stat().st_mtime > limit_s:
                shutil.rmtree(folder)


@contextlib.contextmanager
def _explained(name: str, url: str) -> Iterator[None]:
    what = f"adapter {name!r}" + (f" ({url})" if name != url else "")
    try:
        yield
    except SliceError:
        raise
    except FileNotFoundError as e:
        raise SliceError(
            f"{what} has no {CONFIG} or no {WEIGHTS}: {e}",
            kind="model",
            advice="Give the folder that PEFT saved it to, with both",
        ) from e
    except PermissionError as e:
        raise SliceError(f"{what} may not be read, or copied to {copies_folder()}: {e}", kind="model") from e
    except Exception as e:  # those of stores have many types
        raise SliceError(f"{what} cannot be copied to {copies_folder()}: {e}", kind="transient") from e
