"""The messages that docs/troubleshooting.md quotes are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_TABLES = re.findall(r"\| (?:message|what the log says) \| .+ \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
MESSAGES = [quoted for table in _TABLES for quoted in re.findall(r"^\| `(.+?)` \|", table, re.M)]
#: Stands for a value in a text of the code.
_VALUE = "\0"


@cache
def texts_of_the_code() -> frozenset[str]:
    files = (ROOT / "airflow_provider_raydatallm").rglob("*.py")
    return frozenset(
        text
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if (text := _text_of(node)) is not None
    )


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or _VALUE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text_of(node.left) or _VALUE) + (_text_of(node.right) or _VALUE)
    return None


def is_in_the_code(message: str) -> bool:
    """Whether a text of the code begins with the message, whose `...` stand for its values."""
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    return any(pattern.match(text) for text in texts_of_the_code())


def test_page_quotes_messages_of_each_symptom() -> None:
    assert len(MESSAGES) > 50
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.slow
@pytest.mark.parametrize("message", MESSAGES)
def test_quoted_message_is_in_the_code(message: str) -> None:
    assert is_in_the_code(message)


def test_message_with_another_word_is_not_in_the_code() -> None:
    message = "slice ... is published from other input than ... now holds"
    assert is_in_the_code(message)
    assert not is_in_the_code(message.replace("other input", "another input"))
