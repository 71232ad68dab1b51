"""A function that came with the job by value: from a row to a request.

It was pickled with the code that Python compiled it to, which no other minor version of Python can run.
"""

from __future__ import annotations

import functools
import importlib.resources
import io
import json
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_raydatallm.contract.errors import SliceError

#: What this Python can run the compiled code of.
PYTHON = "{}.{}".format(*sys.version_info)
#: The parameter that gets the whole row.
ROW = "row"


class RowFunction:
    """Calls the function with a row's values. Within the cluster it travels as the bytes that came.

    :raises SliceError: when the cluster lacks what the function imports.
    """

    def __init__(self, name: str, named: Sequence[str], pickled: bytes) -> None:
        """:param named: the function's parameters that the row fills: names of columns, or `row`.
        :param pickled: the function, and the arguments that are the same for every row."""
        self._made_of = (name, named, pickled)
        self._columns = [n for n in named if n != ROW]
        self._takes_row = ROW in named
        try:
            self._function, self._given = _Unpickler(io.BytesIO(pickled)).load()
        except Exception as e:  # what it imports may raise anything
            raise SliceError(
                f"the function {name!r} cannot be loaded on the cluster ({type(e).__name__}: {e}). Ship the "
                "code that it imports with code_paths, or install it on the cluster",
                kind="input",
            ) from e

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFunction, self._made_of

    @property
    def columns(self) -> list[str] | None:
        """The columns that the function needs; None for all."""
        return None if self._takes_row else self._columns

    def check(self, columns: Sequence[str]) -> None:
        """:raises SliceError: when the function names a column that there is not."""
        if missing := [n for n in self._columns if n not in columns]:
            raise SliceError(
                f"a parameter of the function {self._made_of[0]!r} names the column {missing[0]!r}, which "
                f"the input does not have (one that is named {ROW!r} gets the whole row). "
                f"Columns: {', '.join(map(repr, columns))}",
                kind="input",
            )

    def __call__(self, row: dict[str, Any]) -> Any:
        values = {n: row[n] for n in self._columns} | ({ROW: row} if self._takes_row else {})
        return self._function(**values, **self._given)


def load_row_function(package: str) -> RowFunction:
    """The function that a package of `by_value.ship` holds.

    :raises SliceError: when this Python cannot run it, or the cluster lacks what it imports.
    """
    files = importlib.resources.files(package)
    about = json.loads(files.joinpath("function.json").read_text())
    if about["python"] != PYTHON:
        raise SliceError(other_python(about["python"], PYTHON), kind="input")
    return RowFunction(about["name"], about["named"], files.joinpath("function.pickle").read_bytes())


def load_once(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """A helper function under `functools.cache` or `lru_cache`, which pickle knows by name only."""
    return functools.lru_cache(**parameters)(function)


def other_python(sender: str, cluster: str) -> str:
    """Why a function cannot be run, and what to do."""
    return (
        f"the task's function was compiled by Python {sender}, which the Airflow worker runs; the cluster "
        f"runs Python {cluster}, which cannot run that. Put the function into a module and set "
        "preprocess='package.module:function', which ships its source; or run both sides on the same Python"
    )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # cloudpickle's own helpers come with Ray under another name.
        return super().find_class(f"ray.{module}" if module.split(".")[0] == "cloudpickle" else module, name)
