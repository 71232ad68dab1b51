"""Compares what arguments declare with what they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raydatallm.contract.fingerprint import (
    answer_cache_key,
    answers_fingerprint,
    fingerprint,
)
from airflow_provider_raydatallm.contract.spec.engine_arguments import answer_affecting_kwargs
from airflow_provider_raydatallm.contract.spec.engines.cache import CachingEngine
from airflow_provider_raydatallm.contract.spec.field import Affects, leaves_of
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from tests.support.arguments import written
from tests.support.effects.cases import STRONGER, Case
from tests.support.effects.needed import needed
from tests.support.effects.observation import Observation

FINGERPRINT, ANSWERS, KEY, RULE = "fingerprint", "answers_fingerprint", "answer_cache_key", "row_rule"
#: What changes with a value that has an effect.
CHANGES: Mapping[Affects, frozenset[str]] = {
    Affects.ANSWERS: frozenset({FINGERPRINT, ANSWERS, KEY}),
    Affects.REQUEST: frozenset({FINGERPRINT, ANSWERS}),
    Affects.ROWS: frozenset({FINGERPRINT, ANSWERS, RULE}),
    Affects.PUBLISHED: frozenset({FINGERPRINT}),
    Affects.INPUT: frozenset(),
    Affects.NOTHING: frozenset(),
}
#: The paths of kinds among a job's leaves.
_KINDS = {"task": "kind", "engine.kind": "engine.kind"}


@dataclass(frozen=True)
class Finding:
    """What a case shows.

    :param kind: of the task, or the engine, that has the argument.
    :param said: what the argument declares.
    :param told: what changes by itself: others say it, too, such as how labels are found, or vLLM's
        arguments.
    :param caches: whether slices may share answers of the engine.
    """

    path: str
    kind: str
    needed: Affects
    evidence: str
    said: Affects
    told: frozenset[str]
    changed: frozenset[str]
    caches: bool

    @property
    def must(self) -> frozenset[str]:
        """What has to change with the value."""
        return CHANGES[self.needed] - (frozenset() if self.caches else {KEY})

    @property
    def will(self) -> frozenset[str]:
        """What changes by what is declared."""
        return CHANGES[self.said] | self.told

    @property
    def is_declared(self) -> bool:
        is_known = self.needed is not Affects.INPUT or self.said is not Affects.NOTHING
        return is_known and self.must <= self.will


def find(
    path: str,
    case: Case,
    observe: Callable[[SliceJob, Case], Observation],
    make: Callable[[Mapping[str, Any]], SliceJob] = SliceJob.model_validate,
) -> Finding:
    """:raises AssertionError: when the case is none for the argument."""
    jobs = [make(written(**arguments)) for arguments in arguments_of(path, case)]
    _check_pair(path, jobs)
    seen = [observe(job, case) for job in jobs]
    for one in seen:
        is_whole = all((one.rows, one.requests, one.asked, one.stored, one.shared, one.published))
        assert is_whole or case.may_fail, f"{path}: there is nothing to see: {one.failure or one}"
    effect, evidence = needed(*seen)
    of_both = [_hashes(job, one.engine_kwargs) for job, one in zip(jobs, seen, strict=True)]
    return Finding(
        path,
        kind_of(path, jobs[0]),
        effect,
        evidence,
        _declared(path, jobs),
        _told(jobs, seen),
        frozenset(name for name in of_both[0] if of_both[0][name] != of_both[1][name]),
        any(isinstance(job.engine, CachingEngine) for job in jobs),
    )


def arguments_of(path: str, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    name = path.replace(".", "__")
    return case.first, {**case.first, name: case.other, **case.beside}


def kind_of(path: str, job: SliceJob) -> str:
    if path in _KINDS:
        return ""
    group = path.partition(".")[0]
    return job.engine.kind if group == "engine" else job.task.kind


def problems(
    path: str, findings: Sequence[Finding], stronger: Collection[str] = STRONGER.keys()
) -> list[str]:
    """Returns what is wrong with an argument's declaration.

    :param stronger: arguments that may declare more than what the cases show.
    """
    wrong = []
    for one in findings:
        if not one.is_declared:
            wrong.append(f"declares {one.said.name}, and has the effect {one.needed.name}: {one.evidence}")
        if one.changed != one.will:
            wrong.append(f"changes {sorted(one.changed)}, and by what is declared {sorted(one.will)} should")
    if path in stronger:
        return wrong
    for kind, said in {(one.kind, one.said): None for one in findings}:
        same = [one for one in findings if (one.kind, one.said) == (kind, said)]
        shown = {one.needed for one in same}
        if not any(CHANGES[said] <= CHANGES[one] for one in shown) or (
            said is Affects.INPUT and said not in shown
        ):
            effects = sorted(one.name for one in shown)
            wrong.append(f"declares {said.name} of {kind!r}, and no case shows more than {effects}")
    return wrong


def _check_pair(path: str, jobs: Sequence[SliceJob]) -> None:
    values = [{p: value for p, value, _, _ in leaves_of(job)} for job in jobs]
    differing = {p for p in values[0].keys() | values[1].keys() if values[0].get(p) != values[1].get(p)}
    own = _KINDS.get(path, path)
    assert own in differing, f"{path}: the second job has the same value"
    assert path in _KINDS or differing == {own}, f"{path}: the jobs differ in {sorted(differing)}"


def _declared(path: str, jobs: Sequence[SliceJob]) -> Affects:
    """The stronger one of both."""
    own = _KINDS.get(path, path)
    leaves = [next((v, d) for p, v, _, d in leaves_of(job) if p == own) for job in jobs]
    counted = [declared.counts(value) if declared.counts else value for value, declared in leaves]
    if counted[0] == counted[1]:
        return Affects.NOTHING
    said = [declared.affects_of(job) for (_, declared), job in zip(leaves, jobs, strict=True)]
    return min(said, key=list(CHANGES).index)


def _told(jobs: Sequence[SliceJob], seen: Sequence[Observation]) -> frozenset[str]:
    told: frozenset[str] = frozenset()
    if jobs[0].task.derived(jobs[0]) != jobs[1].task.derived(jobs[1]):
        told |= CHANGES[Affects.ANSWERS]
    kwargs = [answer_affecting_kwargs(one.engine_kwargs) for one in seen]
    return told | {KEY} if kwargs[0] != kwargs[1] else told


def _hashes(job: SliceJob, engine_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        FINGERPRINT: fingerprint(job),
        ANSWERS: answers_fingerprint(job),
        KEY: answer_cache_key(job, engine_kwargs, []),
        RULE: job.row_rule,
    }


def hashes(job: SliceJob) -> dict[str, Any]:
    """Returns what is known by hashes of a job."""
    return _hashes(job, job.engine.arguments)
