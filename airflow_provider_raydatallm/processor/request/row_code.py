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
    :param class_name: of the innermost class around it: private names get that name.
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
        before, after = ("(", ")") if self.name == "<lambda>" else ("if True:", "")
        if after or self.text[:1].isspace():
            tree = ast.parse(f"{before}\n{self.text}\n{after}")
            ast.increment_lineno(tree, self.line - 2)
        else:
            tree = ast.parse(self.text)
            ast.increment_lineno(tree, self.line - 1)
        # Statements around the definition, which give it the names that it uses of them.
        around = []
        if self.class_name is not None:
            around.append((self.class_name, f"class {self.class_name}: pass"))
        if names := [name for name in self.free_names if name != "__class__"]:
            around.append(("around", f"def around({', '.join(names)}): pass"))
        for _, statement in around:
            outer = ast.parse(statement)
            outer.body[0].body = tree.body  # type: ignore[attr-defined]
            tree = outer
        code: CodeType = compile(tree, self.file, "exec", flags=self.flags, dont_inherit=True)
        for name in (*(name for name, _ in reversed(around)), self.name):
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
