"""Source and canonical form of a definition in a source file, without the definition's own decorators (their
effect is in the object already).

The canonical form has no positions, comments, docstrings, and annotations of functions. Its values are lists
and strings. Unlike the output of `ast.dump`, `ast.unparse` (f-strings) and the compiler, they are equal for
equal definitions in every minor version of Python.
"""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from airflow_provider_raydatallm.processor.request.row_code import CodeSource

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_STATEMENTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Of `from __future__ import ...`, among the flags of compiled code.
_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
#: Fields of AST nodes that do not affect what the code does.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "returns", "type_comment", "type_params"})


class SourceFiles:
    """Source files of definitions; each is parsed once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}

    def describe_function(self, function: FunctionType) -> Any:
        """A function's parameters and body, or its compiled code where it has no source."""
        code = function.__code__
        definitions = [
            [_describe(node.args), _describe(_body(node))]
            for node in self._find_definitions(function, code.co_firstlineno)
            if isinstance(node, _FUNCTIONS) and getattr(node, "name", "<lambda>") == code.co_name
        ]
        # Lambdas that begin in the same line cannot be told apart: all of them count.
        return definitions or _describe_code(code)

    def describe_class(self, cls: type) -> Any:
        """A class statement, or None for a class without one."""
        try:
            line = inspect.findsource(cls)[1] + 1
        except (OSError, TypeError):
            return None
        nodes = self._find_definitions(cls, line)
        return [_describe(node) for node in nodes if isinstance(node, ast.ClassDef)] or None

    def find_source(self, code: CodeType) -> CodeSource | None:
        """The source that gives this code; None where it is not there, or is one of several in its line."""
        nodes = [
            node
            for node in self._find_definitions(code, code.co_firstlineno)
            if isinstance(node, _FUNCTIONS) and getattr(node, "name", "<lambda>") == code.co_name
        ]
        if len(nodes) != 1:
            return None
        [node], tree = nodes, self._parse(code)
        text = ast.get_source_segment("".join(inspect.findsource(code)[0]), node, padded=True) or ""
        if node.col_offset and not text[:1].isspace():
            text = " " * node.col_offset + text  # which is a single line
        # Outer ones come first in a walk.
        classes = [c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and _stands_in(node, c)]
        source = CodeSource(
            text, node.lineno, code.co_filename, code.co_name, classes[-1] if classes else None,
            code.co_freevars, code.co_flags & _FUTURE_FLAGS,
        )  # fmt: skip
        try:
            # The file may have changed since.
            return source if _without_place(source.compile()) == _without_place(code) else None
        except (SyntaxError, ValueError):
            return None

    def _find_definitions(self, definition: Any, line: int) -> Iterator[ast.AST]:
        """Definitions that begin, with their first decorator, in this line of the definition's file."""
        for node in ast.walk(self._parse(definition)):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                decorators = getattr(node, "decorator_list", [])
                if min([node.lineno, *(d.lineno for d in decorators)]) == line:
                    yield node

    def _parse(self, definition: Any) -> ast.Module:
        """The tree of the definition's file; an empty one where there is no source."""
        try:
            file, lines = inspect.getfile(definition), inspect.findsource(definition)[0]
            if file not in self._trees:
                self._trees[file] = ast.parse("".join(lines))
            return self._trees[file]
        except (OSError, TypeError, SyntaxError):
            return ast.Module([], [])


def find_names(code: CodeType, operation: str) -> Iterator[str]:
    """Names that an operation, such as LOAD_GLOBAL, uses in compiled code and in the code nested in it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == operation:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from find_names(constant, operation)


def _stands_in(node: ast.AST, cls: ast.ClassDef) -> bool:
    return any(inner is node for statement in cls.body for inner in ast.walk(statement))


def _without_place(code: CodeType) -> CodeType:
    """The code as it would be wherever it stood, which makes codes comparable."""
    constants = (_without_place(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    flags = code.co_flags & ~inspect.CO_NESTED
    return code.replace(
        co_filename="", co_firstlineno=1, co_linetable=b"", co_flags=flags, co_consts=tuple(constants)
    )


def _describe(node: Any) -> Any:
    if isinstance(node, list):
        return [_describe(item) for item in node]
    if not isinstance(node, ast.AST):
        return [type(node).__name__, repr(node)]
    fields = {
        name: value
        for name, value in ast.iter_fields(node)
        if name not in _IGNORED_FIELDS and value not in (None, [])
    }
    if isinstance(node, _STATEMENTS):
        fields["body"] = _body(node)
    elif isinstance(node, ast.arg):
        fields.pop("annotation", None)
    elif isinstance(node, ast.Constant):
        fields["value"] = node.value  # which may be None
    elif isinstance(node, ast.JoinedStr):
        # Python 3.12.0 and 3.12.1 leave empty strings in nested formats.
        fields["values"] = [value for value in node.values if getattr(value, "value", None) != ""]
    return [type(node).__name__, *([name, _describe(value)] for name, value in fields.items())]


def _body(node: Any) -> Any:
    """The body without its docstring."""
    match node.body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest
    return node.body


def _describe_code(code: CodeType) -> Any:
    constants = [_describe_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return ["compiled", code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]
