"""When a model gave answers that golden rows spoke against: the answer cache gives no slice any of that time.

Each time is a file whose name says it. Clocks of machines differ: a minute before and after counts, too.
"""

from __future__ import annotations

import re

from airflow_provider_raydatallm.processor.input.listing import short_hash
from airflow_provider_raydatallm.processor.storage.store import Store

#: Beside the answers.
_FOLDER = "_doubted-answers"
_NAME = re.compile(r"(?P<begin>\d{12})-(?P<end>\d{12})-(?P<model>[0-9a-f]{16})\.json")
_CLOCK_SECONDS = 60


def note(store: Store, model_source: str, begin: float, end: float) -> None:
    """:param begin, end: epoch seconds.
    :raises SliceError: when the store fails.
    """
    first, last = int(begin) - _CLOCK_SECONDS, int(end) + _CLOCK_SECONDS
    store.put_document(f"{_FOLDER}/{first:012d}-{last:012d}-{short_hash(model_source)}.json", {})


def spans(store: Store, model_source: str) -> list[tuple[int, int]]:
    """Returns first and last second of each time.

    :raises SliceError: when the store fails.
    """
    found = filter(None, map(_NAME.fullmatch, store.names(_FOLDER)))
    model = short_hash(model_source)
    return [(int(match["begin"]), int(match["end"])) for match in found if match["model"] == model]


def forget(store: Store, before: float) -> None:
    """Removes those of which the cache has no answer any more."""
    for name in store.names(_FOLDER):
        match = _NAME.fullmatch(name)
        if match is not None and int(match["end"]) < before:
            store.remove(f"{_FOLDER}/{name}")
    store.remove_empty(_FOLDER)
