"""Readers that know nothing of the provider, polling a table while it is published and replaced."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.processor.sinks.folder import SUCCESS
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from tests.chaos import work
from tests.chaos.life import Life
from tests.chaos.readers import readers
from tests.chaos.slices import QUESTIONS
from tests.chaos.work import Place

#: Questions of the versions that are published in turn, and in how many files.
_VERSIONS = ((1, False), (2, True), (0, True), (1, True), (2, False), (0, False))
#: What readers say of a file that was replaced between listing and opening, or of a table without files.
_NOT_FOUND = (
    "no such file", "not found", "no files found", "does not exist", "expanded paths were empty", "nosuchkey",
    "resource_not_found", "filenotfounderror", "could not open parquet input source",
    "no such device",  # Polars, of a folder that was not there when it first looked
)  # fmt: skip


def beside_readers(life: Life) -> None:
    """Version after version, one of them killed at a step; then everything the readers saw is judged."""
    stop = life.folder / "stop"
    names = ["published_dataset", "pyarrow", "DuckDB", "Polars"]
    polls = []
    for name in names:
        polls.append(life.children.start(poll, life.place, name, str(stop), name=f"poll-{name}"))
        life.watch(polls[-1])
    try:
        time.sleep(1.0)
        life.prepare()
        for question, is_parts in _VERSIONS:
            change = {
                "question": question, "publish__file_per_input": is_parts,
                "rerun__on_config_change": "recompute",
            }  # fmt: skip
            if question == 2 and not life.outcome.kills:
                life.answer(life.how(*life.trial.points), change)
            child = life.answer(life.how(), change)
            if "value" not in child.result:
                life.outcome.faults.append(f"question {question} ended as {child.result}")
            time.sleep(0.2)
    finally:
        stop.touch()
    for name, child in zip(names, polls, strict=True):
        seen = life.finish(child, name)
        if not seen:
            life.outcome.faults.append(f"{name} ended as {child.result}")
            continue
        life.outcome.faults += [f"{name}: {fault}" for fault in seen["faults"]]
        if not seen["whole"]:
            life.outcome.faults.append(f"{name} never saw a version: {seen}")
    life.inspect("in the end: ", _VERSIONS[-1][0])


def poll(place: Place, reader: str, stop: str) -> dict[str, Any]:
    """Read until `stop` is there. `whole`: reads between which `_SUCCESS` was the same; `partly`: others."""
    work.use(place)
    s = place.slice
    read = readers(s.slice_path)[reader]
    table, metadata = Store(s.job().paths.table), Store(s.job().paths.metadata)
    wanted = [sorted(s.expected(question=q)[0], key=_id) for q in range(len(QUESTIONS))]
    of_fingerprint = {fingerprint(s.job(question=q)): q for q in range(len(QUESTIONS))}
    of_number: dict[int, int] = {}
    seen: Counter[str] = Counter()
    faults: list[str] = []

    def committed() -> set[int]:
        for number in set(versions.Commits.list(metadata).numbers) - of_number.keys():
            version = versions.read_version(metadata, number)
            if version is not None:
                of_number[number] = of_fingerprint[version.fingerprint]
        return set(of_number.values())

    while not os.path.exists(stop):
        before = _success(table)
        try:
            rows, error = read(), None
        except Exception as e:
            rows, error = [], e
        after = _success(table)
        is_same = before is not None and before == after
        if error is not None:
            seen[f"{type(error).__name__}"] += 1
            text = str(error).lower()
            if not (isinstance(error, FileNotFoundError) or any(t in text for t in _NOT_FOUND)):
                faults.append(f"fails with {type(error).__name__}: {str(error)[:300]}")
            elif is_same:
                faults.append(f"finds nothing under the same _SUCCESS: {str(error)[:300]}")
            continue
        questions = {
            next(q for q, text in enumerate(QUESTIONS) if row["answer"].endswith(text[-5:])) for row in rows
        }
        if len(questions) > 1:
            faults.append(f"sees rows of {len(questions)} versions")
        elif questions - committed():
            faults.append(f"sees rows of question {questions}, and {of_number} are committed")
        is_whole = sorted(rows, key=_id) in wanted
        if (is_same or (rows and reader == "published_dataset")) and not is_whole:
            faults.append(f"sees {len(rows)} rows of {len(wanted[0])} under the same _SUCCESS")
        seen["whole" if is_whole else "partly" if rows else "empty"] += 1
        time.sleep(0.005)
    return {"whole": seen["whole"], "seen": dict(seen), "faults": list(dict.fromkeys(faults))[:10]}


def _success(table: Store) -> Any:
    """What tells one version's `_SUCCESS` from another's; None where it is away."""
    if not table.is_local:
        names = table.names()
        return tuple(names) if SUCCESS in names else None
    try:
        found = os.stat(table.path(SUCCESS))
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _id(row: dict[str, Any]) -> Any:
    return row["id"]
