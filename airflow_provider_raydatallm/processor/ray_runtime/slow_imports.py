"""Imports without pandas, which takes a second: pyarrow and Ray Serve import it without need if it is
there."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SERVE_LOCK = threading.RLock()


def keep_pandas_from_pyarrow() -> None:
    """For processes that run no code of users: pyarrow does not look for pandas again, and makes arrays of
    its objects as of any other."""
    import pyarrow as pa

    with pandas_hidden():
        pa.array([])


def import_serve() -> Any:
    with serve_imports():
        from ray import serve
    return serve


@contextlib.contextmanager
def serve_imports() -> Iterator[None]:
    """For whatever imports Serve, or unpickles objects of it. One thread at a time: Serve's modules import
    each other in circles, and two threads that enter one at different places find modules half imported."""
    with _SERVE_LOCK, pandas_hidden():
        yield


@contextlib.contextmanager
def pandas_hidden() -> Iterator[None]:
    """Makes this thread's imports of pandas fail, unless it is imported already."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)
        return None
