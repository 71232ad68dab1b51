"""Patterns that match texts of a model within a time limit: one may take exponential time in their length."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.request.answers.limits.time_limit import TimeLimit

#: Seconds that all patterns of a row may take, at first and at least.
_PATTERN_SECONDS = (0.5, 0.02)


class LimitedPatterns:
    """:raises TimeoutError: from its methods, when a row's patterns take too long."""

    def __init__(self) -> None:
        self._time = TimeLimit(*_PATTERN_SECONDS)

    def start_row(self) -> None:
        self._time.start_row()

    def occurs(self, pattern: str, text: str) -> bool:
        return self._is_match(compile_pattern(pattern).search, text)

    def is_whole(self, pattern: str, text: str, *, as_ascii: bool) -> bool:
        """Whether the pattern matches all of a text.

        :param as_ascii: classes such as \\w are of ASCII, and a dot is any character.
        """
        return self._is_match(compile_pattern(pattern, as_ascii=as_ascii).fullmatch, text)

    def _is_match(self, match: Callable[..., Any], text: str) -> bool:
        started = time.thread_time()
        try:
            is_match = match(text, timeout=self._time.left_s) is not None
            spent_s = time.thread_time() - started
        except TimeoutError:
            is_match, spent_s = False, self._time.left_s
        self._time.take(spent_s)
        return is_match


def check_pattern(argument: str, pattern: str) -> None:
    """:raises SliceError: when it is not valid, or cannot be evaluated within a limit."""
    try:
        compile_pattern(pattern)
    except ImportError as e:
        raise SliceError(
            f"{argument} {pattern!r}, and the cluster lacks the Python package 'regex', which comes with "
            "vLLM and matches within a time limit",
            kind="cluster",
            advice="Install it, or leave the pattern out",
        ) from e
    except Exception as e:  # `regex.error`
        raise SliceError(f"{argument} {pattern!r}, which is not valid: {e}", kind="input") from e


@lru_cache(maxsize=1000)
def compile_pattern(pattern: str, *, as_ascii: bool = False) -> Any:
    import regex  # type: ignore[import-untyped]

    return regex.compile(pattern, regex.ASCII | regex.DOTALL if as_ascii else 0)
