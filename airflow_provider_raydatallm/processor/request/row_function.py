"""A pickled function that came with the job and returns a row's request.

Its pickle holds compiled code, which only the same minor version of Python can run, with its source
(`row_code`); where all of it has a source, any version can.
"""

from __future__ import annotations

import functools
import importlib.resources
import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError, loading, missing_column
from airflow_provider_raydatallm.processor.request.row_code import PYTHON

#: The parameter that gets the whole row.
ROW = "row"


class RowFunction:
    """Calls the function with a row's values. Within the cluster it is passed on as the bytes that came.

    :raises SliceError: when the cluster lacks what the function imports.
    """

    def __init__(self, name: str, row_parameters: Sequence[str], pickled: bytes) -> None:
        """:param row_parameters: the function's parameters that the row fills: names of columns, or `row`.
        :param pickled: the function, and the arguments that are the same for every row."""
        self._init_arguments = (name, row_parameters, pickled)
        self._columns = [p for p in row_parameters if p != ROW]
        self._takes_row = ROW in row_parameters
        with loading(f"the function {name!r}"):
            self._function, self._arguments = _Unpickler(io.BytesIO(pickled)).load()

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFunction, self._init_arguments

    @property
    def columns(self) -> list[str] | None:
        """The columns that the function needs; None for all."""
        return None if self._takes_row else self._columns

    def check_columns(self, columns: Sequence[str]) -> None:
        """:raises SliceError: when the function names a column that the input does not have."""
        if missing := [c for c in self._columns if c not in columns]:
            raise missing_column(
                f"a parameter of the function {self._init_arguments[0]!r} names the column {missing[0]!r}, "
                f"which the input does not have (a parameter named {ROW!r} gets the whole row)",
                missing[0],
                columns,
            )

    def __call__(self, row: dict[str, Any]) -> Any:
        values = {c: row[c] for c in self._columns} | ({ROW: row} if self._takes_row else {})
        return self._function(**values, **self._arguments)


def load_row_function(package: str) -> RowFunction:
    """Loads the function of a package built by `pickle_function`.

    :raises SliceError: when this Python cannot run it, or the cluster lacks what it imports.
    """
    files = importlib.resources.files(package)
    header = json.loads(files.joinpath("function.json").read_text())
    if header["python"] not in ("", PYTHON):
        sentence, advice = describe_python_mismatch(header["python"], PYTHON)
        raise SliceError(sentence, kind="input", advice=advice)
    return RowFunction(
        header["name"], header["row_parameters"], files.joinpath("function.pickle").read_bytes()
    )


def make_cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Restores a helper function under `functools.cache` or `lru_cache`, which pickle knows by name only."""
    return functools.lru_cache(**parameters)(function)


def describe_python_mismatch(sender: str, cluster: str) -> tuple[str, str]:
    """Why the cluster cannot run a function, and what to do."""
    return (
        f"the task's function was compiled by Python {sender}, which the Airflow worker runs, and uses code "
        "that has no source of its own (a dataclass, a NamedTuple, two lambdas in a line, an edited file); "
        f"the cluster runs Python {cluster}, which cannot run that",
        "Put the function into a module and set preprocess='package.module:function', or run both sides on "
        "the same Python",
    )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # cloudpickle's own helpers come with Ray under another name.
        return super().find_class(f"ray.{module}" if module.split(".")[0] == "cloudpickle" else module, name)
