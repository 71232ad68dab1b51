"""Patterns in input paths: `*` and `?` stand for characters of one name, `[ab]` for one of them, and `**`,
alone between slashes, for folders at any depth. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import cached_property

from airflow_provider_raydatallm.contract.result.errors import SliceError

_ANY_DEPTH = "**"
_MAGIC = re.compile(r"[*?\[]")


def split_pattern(path: str) -> tuple[str, tuple[str, ...]]:
    """Returns the part of a path before the first name with a pattern, and the names from there on."""
    names = path.split("/")
    first = next((i for i, name in enumerate(names) if _MAGIC.search(name)), len(names))
    return "/".join(names[:first]), tuple(names[first:])


class Pattern:
    """Follows paths, name by name. What is below a match is matched, too; no names match everything.

    How far a path has come is the set of names of the pattern that may come next.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """:raises SliceError: for `**` within a name."""
        if odd := [name for name in names if _ANY_DEPTH in name and name != _ANY_DEPTH]:
            raise SliceError(
                f"input_path has {odd[0]!r}, and ** stands for folders at any depth, alone between two "
                "slashes",
                kind="input",
                advice=f"Write **/{odd[0].replace(_ANY_DEPTH, '*')}, or a single *",
            )
        self._names = tuple(names)

    @cached_property
    def start(self) -> frozenset[int]:
        return self._skip_depths({0})

    def follow(self, at: frozenset[int], name: str) -> frozenset[int]:
        """Where a name leads; nowhere if nothing below it can match."""
        if self.is_match(at):
            return at
        stay = {i for i in at if self._names[i] == _ANY_DEPTH}
        last = stay & {len(self._names) - 1}  # all that is below, and not the folder itself
        matched = {i for i in at - stay if self._regexes[i].match(name)}
        return self._skip_depths(stay | {i + 1 for i in matched | last})

    def is_match(self, at: frozenset[int]) -> bool:
        return len(self._names) in at

    def may_match_at_any_depth(self, at: frozenset[int]) -> bool:
        return self.is_match(at) or any(self._names[i] == _ANY_DEPTH for i in at)

    @cached_property
    def _regexes(self) -> list[re.Pattern[str]]:
        return [re.compile(fnmatch.translate(name)) for name in self._names]

    def _skip_depths(self, at: set[int]) -> frozenset[int]:
        """A `**` between names may stand for no folder at all."""
        for i, name in enumerate(self._names[:-1]):
            if i in at and name == _ANY_DEPTH:
                at = at | {i + 1}
        return frozenset(at)
