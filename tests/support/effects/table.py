"""Which arguments lack a case. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from airflow_provider_raydatallm.contract.spec.engines import KINDS
from airflow_provider_raydatallm.contract.spec.leaves import Leaf
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks import TASK_ARGUMENTS, TASKS
from tests.support.arguments import written
from tests.support.effects.cases import Case
from tests.support.effects.proof import arguments_of

_OWN = "package.module:Class"


def gaps(leaves: Mapping[str, Leaf], cases: Mapping[str, Sequence[Case]]) -> list[str]:
    """Returns the arguments that lack an entry, or one of a kind of task or engine, and entries of arguments
    that there are not."""
    known = {path for path, leaf in leaves.items() if leaf.is_in_job} | {"task"}
    texts = [f"{path} has no case" for path in sorted(known - cases.keys())]
    texts += [f"{path} is no argument" for path in sorted(cases.keys() - known)]
    for path in sorted(known & cases.keys()):
        if path in leaves and _has_one_value(leaves[path]):
            continue
        lacking = sorted(_kinds(path, leaves) - _kinds_of_cases(path, cases[path]))
        texts += [f"{path} has no case with {kind!r}" for kind in lacking]
        if not cases[path]:
            texts.append(f"{path} has no case")
    return texts


def _has_one_value(leaf: Leaf) -> bool:
    return len(get_args(leaf.field.annotation)) == 1 and not isinstance(leaf.field.annotation, type)


def _kinds(path: str, leaves: Mapping[str, Leaf]) -> set[str]:
    """The kinds of tasks, or engines, that have an argument; none where all jobs have it."""
    if path == "task":
        return set(TASKS)
    if leaves[path].kinds:
        return {condition.partition("=")[2].strip("'") for condition in leaves[path].kinds}
    if path.startswith("engine."):
        return {*KINDS, _OWN}
    return set(TASKS) if path.partition(".")[0] in TASK_ARGUMENTS else set()


def _kinds_of_cases(path: str, cases: Sequence[Case]) -> set[str]:
    kinds: set[str] = set()
    for case in cases:
        pair = [SliceJob.model_validate(written(**arguments)) for arguments in arguments_of(path, case)]
        for job in pair if path in ("task", "engine.kind") else pair[:1]:
            kinds |= {job.task.kind, _OWN if job.engine.is_users_code else job.engine.kind}
    return kinds
