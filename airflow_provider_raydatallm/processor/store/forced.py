"""Versions whose rows were all asked again: nothing that answered their question before counts any more.

A copy of such a version's plan lies beside those answers, as long as they do: the version may be replaced,
and its own plan removed. It is put there right before the commit, and counts once that has succeeded. Neither
Arrow nor Ray is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    epoch_of_forced,
    holds_rows,
    nonce_of_plan,
    plan_of_forced,
    question_before,
)
from airflow_provider_raydatallm.processor.store.versions import Commits, Version


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


def plans_of_forced(metadata: Store, folder: str, names: Iterable[str]) -> list[tuple[int, str]]:
    """Returns the epoch of each forced version that a checkpoint knows, and where its plan lies; not of one
    whose commit failed.

    :param names: of the files in its folder.
    """
    found = [(epoch, name) for name in names if (epoch := epoch_of_forced(name)) is not None]
    if not found:
        return []
    versions = Commits.list(metadata).versions(below=sys.maxsize)
    committed = {nonce_of_plan(version.plan) for version in versions}
    return [(epoch, f"{folder}/{name}") for epoch, name in found if nonce_of_plan(name) in committed]
