"""Text of rows, models, users and other machines, made safe for lines of a log. Pure."""

from __future__ import annotations

import re

#: Colours, cursor moves, window titles.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)", re.DOTALL)
#: Control characters but tab, other line ends, what cannot be seen, what changes the direction of text, and
#: halves of characters, which no stream can encode.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)
_LINE = re.compile(r"\r?\n")
#: The folder on a node into which Ray unpacked code that came with a job.
_UNPACKED = re.compile(r"(?:/[^\s/:'\"]{1,200}){1,20}/(?:py_modules|working_dir)_files/[^\s/:'\"]{1,200}/")


def plain_text(text: str) -> str:
    """Returns one line: terminal commands are left out, control characters are written as escapes (`\\n`).

    So a key, a name or a value ends no line, and none looks like another line of the log.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), _ANSI.sub("", text))


def short_paths(text: str) -> str:
    """Returns it with the paths of code that came with a job as its author knows them: `module/file.py`."""
    return _UNPACKED.sub("", text)


def plain_lines(text: str) -> list[str]:
    """Returns the lines of a text, each as `plain_text` makes it, and all but the first indented: none looks
    like a message of its own."""
    first, *others = map(plain_text, _LINE.split(text))
    return [first, *(f"    {line}" for line in others)]
