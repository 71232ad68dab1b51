"""Versions whose rows were all asked again: nothing that answered their question before counts any more.

A copy of such a version's plan lies beside those answers, as long as they do: the version may be replaced,
and its own plan removed. It is put there right before the commit, and counts once that has succeeded. Neither
Arrow nor Ray is imported.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    epoch_of_forced,
    holds_rows,
    nonce_of_plan,
    plan_of_forced,
    question_before,
)
from airflow_provider_raydatallm.processor.store.versions import Commits, Version, read_version


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


def plans_of_forced(
    metadata: Store, folder: str, names: Iterable[str], *, in_doubt: bool
) -> list[tuple[int, str]]:
    """Returns the epoch of each forced version that a checkpoint knows, and where its plan lies; not of one
    whose commit failed.

    :param names: of the files in its folder.
    :param in_doubt: whether one counts that may have been committed: a commit of the slice is damaged, or of
        another format.
    """
    found = [(epoch, name) for name in names if (epoch := epoch_of_forced(name)) is not None]
    if not found:
        return []
    committed, counts_anyway = set(), False
    for number in Commits.list(metadata).numbers:
        try:
            version = read_version(metadata, number)
        except SliceError as e:
            if e.kind != "input":
                raise
            counts_anyway = in_doubt
            continue
        if version is not None:
            committed.add(nonce_of_plan(version.plan))
    return [
        (epoch, f"{folder}/{name}")
        for epoch, name in found
        if counts_anyway or nonce_of_plan(name) in committed
    ]
