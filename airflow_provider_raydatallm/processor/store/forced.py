"""Versions whose rows were all asked again: nothing that answered their question before counts any more.

A copy of such a version's plan lies beside those answers from just before its commit on, as long as they do:
the version may be replaced, and its own plan removed. Neither Arrow nor Ray is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    epoch_of_forced,
    holds_rows,
    plan_of_forced,
    question_before,
)
from airflow_provider_raydatallm.processor.store.versions import Version


def set_earlier_answers_aside(metadata: Store, version: Version) -> bool:
    """Returns whether there are any: not where the version was not forced, or nobody answered its question
    before.

    :param version: about to be committed, with the epoch in which it was staged: what was answered later
        counts.
    :raises FileNotFoundError: when its plan is gone.
    """
    if (question := question_before(version.question)) is None:
        return False
    folder = f"{CHECKPOINT}/{question}"
    if not any(map(holds_rows, metadata.names(folder))):
        return False
    metadata.place(metadata, version.plan, f"{folder}/{plan_of_forced(version.epoch, version.plan)}")
    return True


def plans_of_forced(folder: str, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields the epoch of each forced version that a checkpoint knows, and where its plan lies.

    :param names: of the files in its folder.
    """
    for name in names:
        if (epoch := epoch_of_forced(name)) is not None:
            yield epoch, f"{folder}/{name}"
