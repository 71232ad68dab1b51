"""JSON Schema's keywords, as jsonschema checks them, within a limit of time.

Some schemas take time without end for some answers: `uniqueItems` compares each object of a list with each
other, and what refers to itself in several `anyOf` branches doubles with each level of an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema

from airflow_provider_raydatallm.processor.request.answers.limits.patterns import LimitedPatterns
from airflow_provider_raydatallm.processor.request.answers.limits.time_limit import TimeLimit

#: Seconds that a row's checks may take, at first and at least. 100,000 values take one.
_SECONDS = (5.0, 0.5)
#: Keywords that are checked between two looks at the clock.
_UNTIMED = 500


class LimitedKeywords(LimitedPatterns):
    """:raises TimeoutError: from its keywords, when a row's checks take too long."""

    def __init__(self) -> None:
        super().__init__()
        self._checks = TimeLimit(*_SECONDS)
        self._of_thread = threading.local()

    def start_row(self) -> None:
        super().start_row()
        self._checks.start_row()
        self._of_thread.untimed, self._of_thread.since = 0, time.thread_time()

    def of(self, dialect: Any) -> dict[str, Callable[..., Any]]:
        """A validator's keywords by their names, for `jsonschema.validators.extend`."""
        keywords = {
            **dialect.VALIDATORS,
            "pattern": self._check_pattern,
            "patternProperties": self._check_pattern_properties,
            "additionalProperties": self._check_additional_properties,
            "uniqueItems": _check_unique_items,
        }
        return {name: self._within_limit(check) for name, check in keywords.items()}

    def _within_limit(self, check: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*arguments: Any) -> Any:
            self._of_thread.untimed += 1
            if self._of_thread.untimed == _UNTIMED:
                self._look_at_clock()
            return check(*arguments)

        return limited

    def _look_at_clock(self) -> None:
        now = time.thread_time()
        self._checks.take(now - self._of_thread.since)
        self._of_thread.untimed, self._of_thread.since = 0, now

    def _check_pattern(self, validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, str) and not self.occurs(pattern, value):
            yield jsonschema.ValidationError(f"{value!r:.200} does not match {pattern!r}")

    def _check_pattern_properties(
        self, validator: Any, by_pattern: Mapping[str, Any], value: Any, schema: Any
    ) -> Iterator[Any]:
        for name, item in value.items() if isinstance(value, dict) else ():
            for pattern, subschema in by_pattern.items():
                if self.occurs(pattern, name):
                    yield from validator.descend(item, subschema, path=name, schema_path=pattern)

    def _check_additional_properties(
        self, validator: Any, subschema: Any, value: Any, schema: Mapping[str, Any]
    ) -> Iterator[Any]:
        by_pattern = schema.get("patternProperties", {})
        for name, item in value.items() if isinstance(value, dict) else ():
            if name not in schema.get("properties", {}) and not any(self.occurs(p, name) for p in by_pattern):
                yield from validator.descend(item, subschema, path=name)


def _check_unique_items(validator: Any, wanted: bool, items: Any, schema: Any) -> Iterator[Any]:
    seen = set()
    for item in items if wanted and isinstance(items, list) else ():
        if (identity := _identity(item)) in seen:
            yield jsonschema.ValidationError(f"{item!r:.100} occurs more than once")
            return
        seen.add(identity)


def _identity(value: Any) -> Any:
    """Hashable, and the same for what is equal in JSON Schema, such as 1 and 1.0, and for nothing else."""
    if isinstance(value, dict):
        return frozenset((name, _identity(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_identity, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    # Whoever writes numbers can choose them by their hashes.
    return (str(int(value)) if value == value // 1 else repr(value)).encode()
