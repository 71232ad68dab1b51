"""Patterns that match texts of a model within a time limit: one may take exponential time in their length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError

#: Seconds that all patterns of a row may take. Each row that takes them halves the limit of later ones, down
#: to the second figure: many such rows take seconds in all.
_PATTERN_SECONDS = (0.5, 0.02)


class LimitedPatterns:
    """:raises TimeoutError: from its methods, when a row's patterns take too long."""

    def __init__(self) -> None:
        self._limit_s = _PATTERN_SECONDS[0]
        self._row = threading.local()

    def start_row(self) -> None:
        self._row.left_s = self._limit_s

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
            if self._row.left_s <= 0:
                raise TimeoutError
            return match(text, timeout=self._row.left_s) is not None
        except TimeoutError:
            self._limit_s = max(_PATTERN_SECONDS[1], self._limit_s / 2)
            raise
        finally:
            self._row.left_s -= time.thread_time() - started


def check_pattern(argument: str, pattern: str) -> None:
    """:raises SliceError: when it is not valid, or cannot be evaluated within a limit."""
    try:
        compile_pattern(pattern)
    except ImportError as e:
        raise SliceError(
            f"{argument} {pattern!r}, and the cluster lacks the Python package 'regex', which comes with "
            "vLLM and matches within a time limit: install it, or leave the pattern out",
            kind="cluster",
        ) from e
    except Exception as e:  # `regex.error`
        raise SliceError(f"{argument} {pattern!r}, which is not valid: {e}", kind="input") from e


@lru_cache(maxsize=1000)
def compile_pattern(pattern: str, *, as_ascii: bool = False) -> Any:
    import regex  # type: ignore[import-untyped]

    return regex.compile(pattern, regex.ASCII | regex.DOTALL if as_ascii else 0)
