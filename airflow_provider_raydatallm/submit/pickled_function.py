"""Sending a function to the cluster by value: pickled with all that it uses of its own module, which the
cluster cannot import when it is a DAG file.

What the function uses of other modules is imported on the cluster: the user's own packages are named, so that
they can be shipped.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.request.row_function import PYTHON, load_once
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.function_hash import CannotTravelError, hash_function, travels

_LOADER = b"""from airflow_provider_raydatallm.processor.request.row_function import load_row_function

function = load_row_function(__name__)
"""
#: The provider travels anyway, and cloudpickle comes with Ray.
_THERE = frozenset({*sys.stdlib_module_names, "airflow_provider_raydatallm", "cloudpickle"})


@dataclass(frozen=True)
class PickledFunction:
    """`reference` names the function on the cluster; `modules` are the user's own that it imports there."""

    reference: str
    package: packages.Package
    modules: Sequence[str]


def pickle_function(
    function: FunctionType, named: Sequence[str], given: Mapping[str, Any]
) -> PickledFunction:
    """A function as a Python package of its own, named by its identity.

    :param named: its parameters that the row fills.
    :param given: its arguments that are the same for every row.
    :raises RayLLMInputError: naming what cannot be sent.
    """
    name = function.__name__
    try:
        identity = hash_function(function, given)
        pickled = _pickled(function, given)
    except CannotTravelError as e:
        raise RayLLMInputError(
            f"the function {name!r} cannot be sent to the cluster: {e}. Make it inside the function, or pass "
            f"what is needed of it as an argument of the call: {name}(argument=...)"
        ) from e
    except Exception as e:  # objects refuse each in their own way
        raise RayLLMInputError(
            f"the function {name!r} cannot be sent to the cluster: {type(e).__name__}: {e}"
        ) from e
    package = f"ray_llm_function_{identity.digest[:16]}"
    about = {"name": name, "python": PYTHON, "named": list(named)}
    files = {"__init__.py": _LOADER, "function.json": json.dumps(about).encode(), "function.pickle": pickled}
    return PickledFunction(
        f"{package}:function",
        packages.function_package(package, files, identity.digest, PYTHON),
        [m for m in dict.fromkeys(m.split(".")[0] for m in identity.modules) if _is_users(m)],
    )


def _pickled(function: FunctionType, given: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with _by_value(function.__module__):
        _Pickler(buffer, function.__module__).dump((function, dict(given)))
    return buffer.getvalue()


@contextmanager
def _by_value(module: str) -> Iterator[None]:
    found = sys.modules.get(module)
    if found is None or module in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(found)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(found)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, home: str) -> None:
        super().__init__(file)
        self._home = home

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, functools._lru_cache_wrapper) and travels(obj, self._home):
            return load_once, (obj.__wrapped__, obj.cache_parameters())
        made = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and made is not NotImplemented:
            # Annotations decide nothing, and may name what the cluster does not have.
            made[2][1]["__annotations__"] = {}
        return made


def _is_users(module: str) -> bool:
    """Whether a top-level module is code of the user's own, not an installed package."""
    if module in _THERE:
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    origin = Path(str(spec.origin)) if spec is not None else Path()
    return not {"site-packages", "dist-packages"} & set(origin.parts)
