"""A hash of a function's code and of everything that it uses.

The hash is equal in another process, on another machine, after the DAG file was parsed again, and with other
line numbers, comments, docstrings or annotations. It changes with the code, and with the value of anything
that the function uses: globals, closure, defaults, and the helper functions and classes that are pickled with
it. What the cluster imports counts by name only. (A hash of pickled bytes would differ by line numbers,
compiled code and the random order of sets.)

The same walk collects the modules that the cluster must have, and names what cannot be sent.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, ModuleType
from typing import Any, NoReturn

import cloudpickle

from airflow_provider_raydatallm.submit.source_ast import SourceFiles, find_names

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


class CannotSendError(ValueError):
    """A value that a function uses cannot be sent to the cluster; names it and the path to it."""


@dataclass(frozen=True)
class FunctionHash:
    """`modules`: full names of the modules that the function imports where it runs."""

    digest: str
    modules: tuple[str, ...]


def hash_function(function: FunctionType, arguments: Mapping[str, Any]) -> FunctionHash:
    """Hashes a function that is always called with these arguments.

    :raises CannotSendError: naming what cannot be sent.
    """
    walk = _Walk(function.__module__)
    description = [walk.describe(function.__name__, function)]
    description += [[name, walk.describe(f"argument {name}", arguments[name])] for name in sorted(arguments)]
    digest = hashlib.sha256(json.dumps(description, separators=(",", ":")).encode()).hexdigest()
    return FunctionHash(digest, tuple(sorted(walk.modules)))


def is_sent_by_value(definition: Any, home: str) -> bool:
    """Whether a function or class is of the module `home`, or cannot be imported by its name."""
    module = getattr(definition, "__module__", None)
    if module is None or module not in sys.modules or f"{module}.".startswith(("__main__.", f"{home}.")):
        return True
    importable: Any = sys.modules[module]
    for part in definition.__qualname__.split("."):
        importable = getattr(importable, part, None)
    return importable is not definition


class _Walk:
    """Describes everything that a function reaches as nested lists, each definition once."""

    def __init__(self, home: str) -> None:
        self.modules: set[str] = set()
        self._home = home
        self._path: list[str] = []
        #: Described functions and classes by id, with their number, which stands for them when met again.
        self._definitions: dict[int, tuple[int, Any]] = {}
        #: Depths of the values being described, by id: the depth describes a value that contains itself.
        self._depths: dict[int, int] = {}
        self._sources = SourceFiles()

    def describe(self, name: str, value: Any) -> Any:
        self._path.append(name)
        description = self._describe(value)
        self._path.pop()
        return description

    def _describe(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            # A DAG file's module is named after its path, which differs between machines.
            return [kind.__name__, "home" if kind is str and value == self._home else repr(value)]
        if kind is ModuleType:
            return ["module", self._add_module(value.__name__)]
        if isinstance(value, (FunctionType, type, functools._lru_cache_wrapper)):
            return self._describe_definition(value)
        if id(value) in self._depths:
            return ["itself", self._depths[id(value)]]
        self._depths[id(value)] = len(self._depths)
        if kind in (list, tuple):
            description = [kind.__name__, *map(self._describe, value)]
        elif kind is dict:
            description = ["dict", *([self._describe(k), self._describe(v)] for k, v in value.items())]
        elif kind in (set, frozenset):
            description = [kind.__name__, *sorted(map(self._describe, value), key=json.dumps)]
        else:
            description = self._describe_object(value)
        del self._depths[id(value)]
        return description

    def _describe_object(self, value: Any) -> Any:
        """Describes any other object by its parts, as pickle reduces it."""
        kind = type(value)
        if kind.__module__.split(".")[0] == "airflow":
            self._refuse(f"is a {kind.__qualname__} of Airflow, which the cluster does not have")
        reduce = cloudpickle.Pickler.dispatch_table.get(kind)
        try:
            parts: Any = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as e:  # each type raises its own error
            self._refuse(f"is a {kind.__qualname__}, which cannot be pickled ({e})")
        if isinstance(parts, str):
            module = getattr(value, "__module__", None) or "builtins"
            if module == self._home:
                self._refuse(f"is a {kind.__qualname__}, which can only be imported by its name")
            return ["by name", self._add_module(module), parts]
        constructor, arguments, state, items, pairs = (*parts, None, None, None)[:5]
        return [
            "object",
            *map(self._describe, (constructor, arguments, state)),
            [self._describe(item) for item in items or ()],
            [[self._describe(k), self._describe(v)] for k, v in pairs or ()],
        ]

    def _describe_definition(self, value: Any) -> Any:
        if not is_sent_by_value(value, self._home):
            return ["by name", self._add_module(value.__module__), value.__qualname__]
        if id(value) in self._definitions:
            return ["met", self._definitions[id(value)][0]]
        self._definitions[id(value)] = (len(self._definitions), value)
        if isinstance(value, type):
            return self._describe_class(value)
        if isinstance(value, FunctionType):
            return self._describe_function(value)
        return ["cached", self._describe(value.cache_parameters()), self._describe(value.__wrapped__)]

    def _describe_function(self, function: FunctionType) -> Any:
        code, module_globals = function.__code__, function.__globals__
        for module in filter(None, find_names(code, "IMPORT_NAME")):
            self._add_module(module, "imports")
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        names = find_names(code, "LOAD_GLOBAL")
        used_globals = {name: module_globals[name] for name in names if name in module_globals}
        closure = {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}
        return [
            "function",
            self._sources.describe_function(function),
            self._describe(function.__defaults__),
            self._describe(function.__kwdefaults__),
            *map(self._describe_names, (used_globals, closure, vars(function))),
        ]

    def _describe_class(self, cls: type) -> Any:
        members = {name: _unwrap(member) for name, member in vars(cls).items()}
        return [
            "class",
            cls.__qualname__,
            self._sources.describe_class(cls),
            [self._describe(base) for base in cls.__bases__],
            self._describe_names({n: m for n, m in members.items() if _is_users_member(cls, n, m)}),
        ]

    def _describe_names(self, values: Mapping[str, Any]) -> list[Any]:
        return [[name, self.describe(name, values[name])] for name in sorted(values)]

    def _add_module(self, module: str, relation: str = "is of") -> str:
        if module.split(".")[0] == "airflow":
            self._refuse(f"{relation} {module}, which the cluster does not have")
        self.modules.add(module)
        return module

    def _refuse(self, reason: str) -> NoReturn:
        raise CannotSendError(f"{' -> '.join(self._path)} {reason}")


def _is_users_member(cls: type, name: str, member: Any) -> bool:
    """Whether the user wrote a member of a class, not the class statement or a decorator."""
    if isinstance(member, FunctionType):
        generated = member.__code__.co_filename.startswith("<")
        return member.__globals__.get("__name__") == cls.__module__ and not generated
    return not (name.startswith("_") or isinstance(member, cls) or hasattr(type(member), "__get__"))


def _unwrap(member: Any) -> Any:
    """The function in a property, class method or wrapper; any other member itself."""
    return inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))


def _is_empty(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False
