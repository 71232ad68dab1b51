"""What a definition in a source file says, without where and how it is written: positions, comments,
docstrings, annotations of functions and their decorators (which have done their work) are left out.

Values are lists and texts, equal for equal definitions under any minor version of Python: `ast.dump` and
compiled code are not.
"""

from __future__ import annotations

import ast
import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_STATEMENTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Parts of the tree that change nothing of what the code does.
_SILENT = frozenset({"ctx", "kind", "returns", "type_comment", "type_params"})


class Sources:
    """The source files of definitions, each parsed once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module | None] = {}

    def function(self, function: FunctionType) -> Any:
        """A function's parameters and body; its compiled code where there is no source of it."""
        code = function.__code__
        found = [
            [_plain(n.args), _plain(_body(n))]
            for n in self._beginning(function, code.co_firstlineno)
            if isinstance(n, _FUNCTIONS) and getattr(n, "name", "<lambda>") == code.co_name
        ]
        # Lambdas that begin in one line cannot be told apart: all of them count.
        return found or _compiled(code)

    def class_(self, cls: type) -> Any:
        """A class statement; None for a class that is not made by one."""
        try:
            line = inspect.findsource(cls)[1] + 1
        except (OSError, TypeError):
            return None
        return [_plain(n) for n in self._beginning(cls, line) if isinstance(n, ast.ClassDef)] or None

    def _beginning(self, thing: Any, line: int) -> Iterator[ast.AST]:
        """Definitions whose first line, that of their first decorator, is this."""
        for node in ast.walk(self._tree(thing) or ast.Module([], [])):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                decorators = getattr(node, "decorator_list", [])
                if min([node.lineno, *(d.lineno for d in decorators)]) == line:
                    yield node

    def _tree(self, thing: Any) -> ast.Module | None:
        try:
            file, lines = inspect.getfile(thing), inspect.findsource(thing)[0]
        except (OSError, TypeError):
            return None
        if file not in self._trees:
            try:
                self._trees[file] = ast.parse("".join(lines))
            except SyntaxError:
                self._trees[file] = None
        return self._trees[file]


def names_in(code: CodeType, operation: str) -> Iterator[str]:
    """Names that an operation has in compiled code and in what is nested in it, such as LOAD_GLOBAL."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == operation:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant, operation)


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(n) for n in node]
    if not isinstance(node, ast.AST):
        return [type(node).__name__, repr(node)]
    parts = {
        name: value
        for name, value in ast.iter_fields(node)
        if name not in _SILENT and value not in (None, [])
    }
    if isinstance(node, _STATEMENTS):
        parts["body"] = _body(node)
    if isinstance(node, ast.arg):
        parts.pop("annotation", None)
    if isinstance(node, ast.Constant):
        parts["value"] = node.value  # which may be None
    if isinstance(node, ast.JoinedStr):
        # Python 3.12.0 and 3.12.1 leave empty texts in nested formats.
        parts["values"] = [n for n in node.values if getattr(n, "value", None) != ""]
    return [type(node).__name__, *([name, _plain(value)] for name, value in parts.items())]


def _body(node: Any) -> Any:
    """The body without its docstring."""
    first = node.body[0] if isinstance(node.body, list) else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return node.body[1:]
    return node.body


def _compiled(code: CodeType) -> Any:
    constants = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return ["compiled", code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]
