"""Compiled code of a function that came with the job: as it was sent, where this is the same minor version of
Python, else compiled again from its source.
"""

from __future__ import annotations

import ast
import marshal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import cast

#: The minor version of this Python.
PYTHON = "{}.{}".format(*sys.version_info)


@dataclass(frozen=True)
class CodeSource:
    """The source of a function or a lambda.

    :param text: as it stands in its file, with its indentation and without its decorators.
    :param line: of the file, in which the text begins.
    :param class_name: of the class in which it stands.
    :param free_names: what it uses of the functions around it.
    :param flags: of `from __future__ import ...`.
    """

    text: str
    line: int
    file: str
    name: str
    class_name: str | None
    free_names: Sequence[str]
    flags: int

    def compile(self) -> CodeType:
        """:raises SyntaxError: when this Python does not have the syntax.
        :raises ValueError: when the result has not what the function's closure was built for."""
        is_lambda = self.name == "<lambda>"
        # Statements around the definition, which give it the names that it uses of them.
        around: dict[str, str] = {}
        if is_lambda or self.text[:1].isspace():
            names = ", ".join(name for name in self.free_names if name != "__class__")
            around["around"] = f"def around({names}):"
        if self.class_name is not None:
            around[self.class_name] = f" class {self.class_name}:"
        lines = [*around.values(), *(["  ("] if is_lambda else [])]
        tree = ast.parse("\n".join([*lines, self.text, *([")"] if is_lambda else [])]))
        ast.increment_lineno(tree, max(self.line - 1 - len(lines), 0))
        code: CodeType = compile(tree, self.file, "exec", flags=self.flags, dont_inherit=True)
        for name in (*around, self.name):
            [code] = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if code.co_freevars != tuple(self.free_names):
            raise ValueError(f"{self.name} uses {code.co_freevars} of the functions around it")
        return code


def restore_code(python: str, compiled: bytes, source: CodeSource) -> CodeType:
    """
    :param python: minor version that `compiled` is for.
    :param compiled: by `marshal`.
    """
    return cast("CodeType", marshal.loads(compiled)) if python == PYTHON else source.compile()
