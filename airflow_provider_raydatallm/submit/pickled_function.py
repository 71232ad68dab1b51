"""Sends a function to the cluster by value: pickled with everything that it uses of its own module, which the
cluster cannot import when it is a DAG file.

What the function uses of other modules is imported on the cluster: the user's own packages are named, so that
they can be shipped.
"""

from __future__ import annotations

import functools
import io
import json
import marshal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.request.row_code import PYTHON, restore_code
from airflow_provider_raydatallm.processor.request.row_function import make_cached
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.function_hash import CannotSendError, hash_function, is_sent_by_value
from airflow_provider_raydatallm.submit.source_ast import SourceFiles

_LOADER = b"""from airflow_provider_raydatallm.processor.request.row_function import load_row_function

function = load_row_function(__name__)
"""
#: The provider is shipped anyway, and cloudpickle comes with Ray.
_ON_CLUSTER = frozenset({*sys.stdlib_module_names, "airflow_provider_raydatallm", "cloudpickle"})


@dataclass(frozen=True)
class PickledFunction:
    """`reference` names the function on the cluster; `modules` are the user's own that it imports there."""

    reference: str
    package: packages.Package
    modules: Sequence[str]


def pickle_function(
    function: FunctionType, row_parameters: Sequence[str], arguments: Mapping[str, Any]
) -> PickledFunction:
    """Builds a Python package that holds a function and is named after its hash.

    :param row_parameters: the function's parameters that the row fills.
    :param arguments: its arguments that are the same for every row.
    :raises RayLLMInputError: naming what cannot be sent.
    """
    name = function.__name__
    try:
        function_hash = hash_function(function, arguments)
        pickled, python = _pickle(function, arguments)
    except CannotSendError as e:
        raise RayLLMInputError(
            f"the function {name!r} cannot be sent to the cluster: {e}",
            advice="Create it inside the function, or pass what the function needs of it as an argument of "
            f"the call: {name}(argument=...)",
        ) from e
    except Exception as e:  # each type raises its own error
        raise RayLLMInputError(
            f"the function {name!r} cannot be sent to the cluster: {type(e).__name__}: {e}"
        ) from e
    module = f"ray_llm_function_{function_hash.digest[:16]}"
    header = json.dumps({"name": name, "python": python, "row_parameters": list(row_parameters)})
    files = {"__init__.py": _LOADER, "function.json": header.encode(), "function.pickle": pickled}
    package = packages.zip_files(
        ((f"{module}/{file}", data) for file, data in files.items()), "what the task's function uses"
    )
    # Pickled bytes of equal functions may differ: the package's digest is the function's.
    package = replace(package, digest=function_hash.digest, python=python)
    top_level_modules = dict.fromkeys(m.split(".")[0] for m in function_hash.modules)
    return PickledFunction(f"{module}:function", package, [m for m in top_level_modules if _is_users(m)])


def _pickle(function: FunctionType, arguments: Mapping[str, Any]) -> tuple[bytes, str]:
    """Returns the pickle, and the minor version of Python that it needs; empty for any."""
    buffer = io.BytesIO()
    with _pickled_by_value(function.__module__):
        pickler = _Pickler(buffer, function.__module__)
        pickler.dump((function, dict(arguments)))
    return buffer.getvalue(), "" if pickler.has_all_sources else PYTHON


@contextmanager
def _pickled_by_value(name: str) -> Iterator[None]:
    module = sys.modules.get(name)
    if module is None or name in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, home: str) -> None:
        super().__init__(file)
        self._home = home
        self._sources = SourceFiles()
        self.has_all_sources = True

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            if (source := self._sources.find_source(obj)) is not None:
                return restore_code, (PYTHON, marshal.dumps(obj), source)
            self.has_all_sources = False
        if isinstance(obj, functools._lru_cache_wrapper) and is_sent_by_value(obj, self._home):
            return make_cached, (obj.__wrapped__, obj.cache_parameters())
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and reduced is not NotImplemented:
            # Annotations affect nothing, and may name types that the cluster does not have.
            reduced[2][1]["__annotations__"] = {}
        return reduced


def _is_users(module: str) -> bool:
    """Whether a top-level module is the user's own code, not an installed package."""
    source = None if module in _ON_CLUSTER else packages.find_source(module)
    return source is not None and not {"site-packages", "dist-packages"} & set(source.parts)
