"""What an attempt leaves behind about its job: for later attempts, and for itself when the triggerer resumes
it. Whatever became of the DAG, its connections or a credentials service meanwhile, a job that finished is
concluded from this alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import pydantic

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.task.job_waiter import JobRef

STATE_KEY = "ray_llm_job"


@dataclass(frozen=True)
class JobRecord:
    """In Airflow's task state store, which survives retries, clears, and the deaths of workers and
    triggerers.

    :param spec_hash: hash of the spec and its code.
    :param fingerprint: for people who read the record.
    :param try_number: of the attempt that waits for the job, or concluded it.
    :param commits_alone: whether the job runs on when the task is killed or marked (`cancel_on_kill=False`).
    :param submission_count: jobs that this attempt has submitted, with this one.
    :param result: `return_value` of a `concluded` job's task.
    """

    phase: Literal["intent", "submitted", "ended", "concluded"]
    ray_conn_id: str
    submission_id: str
    nonce: str
    spec_hash: str
    fingerprint: str
    try_number: int
    commits_alone: bool = False
    submission_count: int = 1
    taken_over_at: float | None = None
    result: dict[str, Any] | None = None

    @classmethod
    def read(cls, state_store: Any) -> JobRecord | None:
        value = state_store.get(STATE_KEY) if state_store is not None else None
        if not isinstance(value, dict):
            return None
        names = {f.name for f in fields(cls)}
        try:
            # Another version of the provider may have written it.
            return cls(**{k: v for k, v in value.items() if k in names})
        except TypeError:
            return None

    @property
    def is_over(self) -> bool:
        """Whether no attempt has to look at the job again."""
        return self.phase in ("ended", "concluded")

    def conclude(self, result: dict[str, Any], try_number: int) -> JobRecord:
        return replace(self, phase="concluded", result=result, try_number=try_number)

    def lost_result(self, spec_hash: str, first_try: int, try_number: int) -> dict[str, Any] | None:
        """Returns the result of an attempt that died between concluding the job and Airflow's taking note.

        :param spec_hash: of this attempt, which may ask for something else.
        :param first_try: since somebody cleared the task, and so asked anew.
        """
        is_earlier_try = first_try <= self.try_number < try_number
        return self.result if is_earlier_try and self.spec_hash == spec_hash else None


@dataclass(frozen=True)
class DeferredJob:
    """A job that a task waits for in the triggerer, and its slice."""

    ref: JobRef
    slice_job: SliceJob

    def to_kwargs(self) -> dict[str, Any]:
        """Returns what Airflow keeps for the resume (JSON)."""
        return {
            "job": asdict(self.ref),
            "spec": self.slice_job.model_dump(mode="json", exclude_defaults=True),
        }

    @classmethod
    def from_kwargs(cls, job: dict[str, Any] | None, spec: dict[str, Any] | None) -> DeferredJob | None:
        """Returns None for what another version of the provider kept, and this one cannot read."""
        try:
            return cls(JobRef(**job), SliceJob.model_validate(spec)) if job and spec else None
        except (TypeError, pydantic.ValidationError):
            return None
