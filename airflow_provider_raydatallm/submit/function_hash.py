"""What a function is: a hash of its code and of all that it uses.

The hash is equal in another process, on another machine, after the DAG file was parsed again, and with other
line numbers, comments, docstrings or annotations. It changes with the code, and with the value of anything
that the function uses: globals, closure, defaults, helper functions and classes that travel with it. What the
cluster imports counts by its name only. (Pickled bytes are no such hash: they hold line numbers, compiled
code and sets in the order of a random seed.)

The same walk over all that travels finds the modules that the cluster must have, and names what cannot
travel.
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

from airflow_provider_raydatallm.submit.source_ast import Sources, names_in

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


class CannotTravelError(ValueError):
    """Something that a function uses cannot be sent to the cluster; says what, and by which names it is
    used."""


@dataclass(frozen=True)
class FunctionHash:
    """`modules`: what the function imports where it runs, by full name."""

    digest: str
    modules: tuple[str, ...]


def hash_function(function: FunctionType, arguments: Mapping[str, Any]) -> FunctionHash:
    """The identity of a function that is always called with these arguments.

    :raises CannotTravelError: naming what cannot be sent.
    """
    walk = _Walk(function.__module__)
    found = [walk.named(function.__name__, function)]
    found += [[name, walk.named(f"argument {name}", arguments[name])] for name in sorted(arguments)]
    digest = hashlib.sha256(json.dumps(found, separators=(",", ":")).encode()).hexdigest()
    return FunctionHash(digest, tuple(sorted(walk.modules)))


def travels(thing: Any, home: str) -> bool:
    """Whether a function or class goes along by value: it is of the module `home`, or nothing importable."""
    module = getattr(thing, "__module__", None)
    if module is None or module not in sys.modules or f"{module}.".startswith(("__main__.", f"{home}.")):
        return True
    found: Any = sys.modules[module]
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not thing


class _Walk:
    """Goes once through all that is reached from a function."""

    def __init__(self, home: str) -> None:
        self.modules: set[str] = set()
        self._home = home
        self._path: list[str] = []
        #: Functions and classes in the order in which they are met: met again, they are told by their number.
        self._met: dict[int, tuple[int, Any]] = {}
        #: Values that are being taken apart: one that holds itself is told by its depth.
        self._open: dict[int, int] = {}
        self._sources = Sources()

    def named(self, name: str, value: Any) -> Any:
        self._path.append(name)
        found = self._value(value)
        self._path.pop()
        return found

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            # A DAG file's module is named after its path, which differs between machines.
            return [kind.__name__, "home" if kind is str and value == self._home else repr(value)]
        if kind is ModuleType:
            return ["module", self._imported(value.__name__)]
        if isinstance(value, (FunctionType, type, functools._lru_cache_wrapper)):
            return self._defined(value)
        if id(value) in self._open:
            return ["itself", self._open[id(value)]]
        self._open[id(value)] = len(self._open)
        found = self._container(value)
        del self._open[id(value)]
        return found

    def _container(self, value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple):
            return [kind.__name__, *map(self._value, value)]
        if kind is dict:
            return ["dict", *([self._value(k), self._value(v)] for k, v in value.items())]
        if kind in (set, frozenset):
            return [kind.__name__, *sorted(map(self._value, value), key=json.dumps)]
        return self._object(value)

    def _object(self, value: Any) -> Any:
        """Anything else, as pickle takes it apart."""
        kind = type(value)
        if kind.__module__.split(".")[0] == "airflow":
            self._refuse(f"is a {kind.__qualname__} of Airflow, which the cluster does not have")
        reduce = cloudpickle.Pickler.dispatch_table.get(kind)
        try:
            parts: Any = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as e:  # objects refuse each in their own way
            self._refuse(f"is a {kind.__qualname__}, which cannot be pickled ({e})")
        if isinstance(parts, str):
            module = getattr(value, "__module__", None) or "builtins"
            if module == self._home:
                self._refuse(f"is a {kind.__qualname__}, which can only be imported by its name")
            return ["by name", self._imported(module), parts]
        made, arguments, state, items, pairs = (*parts, None, None, None)[:5]
        return [
            "object",
            *map(self._value, (made, arguments, state)),
            [self._value(item) for item in items or ()],
            [[self._value(k), self._value(v)] for k, v in pairs or ()],
        ]

    def _defined(self, value: Any) -> Any:
        if not travels(value, self._home):
            return ["by name", self._imported(value.__module__), value.__qualname__]
        if id(value) in self._met:
            return ["met", self._met[id(value)][0]]
        self._met[id(value)] = (len(self._met), value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        return ["cached", self._value(value.cache_parameters()), self._value(value.__wrapped__)]

    def _function(self, function: FunctionType) -> Any:
        code, known = function.__code__, function.__globals__
        for module in filter(None, names_in(code, "IMPORT_NAME")):
            self._imported(module, "imports")
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        used = {name: known[name] for name in names_in(code, "LOAD_GLOBAL") if name in known}
        closed = {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}
        return [
            "function",
            self._sources.function(function),
            self._value(function.__defaults__),
            self._value(function.__kwdefaults__),
            *([[n, self.named(n, of[n])] for n in sorted(of)] for of in (used, closed, vars(function))),
        ]

    def _class(self, cls: type) -> Any:
        members = {n: _inner(m) for n, m in vars(cls).items()}
        return [
            "class",
            cls.__qualname__,
            self._sources.class_(cls),
            [self._value(base) for base in cls.__bases__],
            [[n, self.named(n, members[n])] for n in sorted(members) if _is_written(cls, n, members[n])],
        ]

    def _imported(self, module: str, how: str = "is of") -> str:
        if module.split(".")[0] == "airflow":
            self._refuse(f"{how} {module}, which the cluster does not have")
        self.modules.add(module)
        return module

    def _refuse(self, why: str) -> NoReturn:
        raise CannotTravelError(f"{' -> '.join(self._path)} {why}")


def _is_written(cls: type, name: str, member: Any) -> bool:
    """Whether a member of a class is the user's, not made by the class statement or a decorator."""
    if isinstance(member, FunctionType):
        made = member.__code__.co_filename.startswith("<")
        return member.__globals__.get("__name__") == cls.__module__ and not made
    return not (name.startswith("_") or isinstance(member, cls) or hasattr(type(member), "__get__"))


def _inner(member: Any) -> Any:
    """The function in a property, class method or wrapper; the member itself if there is none."""
    return inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))


def _is_empty(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False
