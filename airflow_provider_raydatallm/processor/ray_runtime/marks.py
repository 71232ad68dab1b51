"""Marks: names that all jobs on a cluster see, and that end with their job, however it dies.

They are keys in the cluster's key-value store, and count while Ray knows their job as running. A named actor
would cost a process.
"""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime.cluster_store import ClusterStore

_MARKS = ClusterStore.of_kind("mark")
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Mark:
    name: str
    job_id: str
    _nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def set(cls, name: str, value: str = "") -> Mark:
        """Sets a mark of this job, with a value that goes when the mark does."""
        import ray

        mark = cls(name, ray.get_runtime_context().get_job_id())
        _MARKS.put(mark._key, value)
        return mark

    def remove(self) -> None:
        _MARKS.delete(self._key)

    @property
    def _key(self) -> str:
        return "\0".join((self.name, self.job_id, self._nonce))


def marks(prefix: str) -> list[str]:
    """Returns the sorted names with this prefix, without it."""
    return sorted(mark.name.removeprefix(prefix) for mark in _marks_of_running_jobs(prefix))


def values(prefix: str) -> list[str]:
    """Returns the values of the marks with this prefix."""
    return [_MARKS.get(mark._key) or "" for mark in _marks_of_running_jobs(prefix)]


def try_lock(name: str) -> Mark | None:
    """Returns a mark that no other job, or part of this one, has; None when the name is taken."""
    if _holders(name):
        return None
    mine = Mark.set(name)
    if _holders(name) != [mine]:
        mine.remove()  # of those that are here at the same time, one at most sees none of the others
        return None
    return mine


def _holders(name: str) -> list[Mark]:
    return [mark for mark in _marks_of_running_jobs(name) if mark.name == name]


@contextlib.contextmanager
def cluster_lock(name: str, timeout_s: float) -> Iterator[None]:
    """Holds a lock that one job on the cluster can have at a time.

    :raises SliceError: of kind `engine`, when others hold it all the time: one of them may hang.
    """
    deadline = time.monotonic() + timeout_s
    while (lock := try_lock(name)) is None:
        if time.monotonic() > deadline:
            raise SliceError(
                f"other jobs hold the lock {name!r} for more than {timeout_s:g} s",
                kind="engine",
                advice="Does one of them hang?",
            )
        # Jobs that look at the same time all back off: not at the same time again.
        time.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))
    try:
        yield
    finally:
        lock.remove()


def _marks_of_running_jobs(prefix: str) -> list[Mark]:
    """Removes those of jobs that died."""
    import ray
    from ray._private.state import jobs

    all_marks = [Mark(*key.split("\0")) for key in _MARKS.names(prefix)]
    is_dead = {ray.get_runtime_context().get_job_id(): False} if all_marks else {}
    if any(mark.job_id not in is_dead for mark in all_marks):
        # After the keys: a job that set one of them is known. Ray keeps ended jobs, too: a look at 10,000
        # takes it a tenth of a second.
        is_dead |= {job["JobID"]: job["IsDead"] for job in jobs()}
    running = []
    for mark in all_marks:
        if is_dead.get(mark.job_id) is False:
            running.append(mark)
        elif mark.job_id in is_dead:
            mark.remove()
    return running
