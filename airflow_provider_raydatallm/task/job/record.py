"""What an attempt leaves behind about its job: for later attempts, and for itself when the triggerer resumes
it. Whatever became of the DAG, its connections or a credentials service meanwhile, a job that finished is
concluded from this alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import pydantic

from airflow_provider_raydatallm.contract.job.phase import PHASE
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.hooks.jobs_api import TERMINAL, ListedJob
from airflow_provider_raydatallm.task.job.waiter import JobRef
from airflow_provider_raydatallm.task.queue.places import task_key

if TYPE_CHECKING:
    from airflow_provider_raydatallm.submit.ray_job import JobSubmission

STATE_KEY = "ray_llm_job"
#: Raised when a field's meaning changes.
FORMAT = 1
#: It becomes part of a path on the cluster.
_JOB_ID = re.compile(r"\A[\w.-]*\w\Z", re.ASCII)
_IN_METADATA = ("cluster", "nonce", "spec_hash", "fingerprint", "record_format")
#: In a job's metadata, see `try_series`.
SERIES = "try_series"


def try_series(ti: Any, dag_run: Any) -> str:
    """Returns what a try has in common with its retries, and with no try before or after a clear.

    A clear counts in its run, and gives the task new tries; where neither shows it (a clear that leaves the
    run as it is, of a task with other `retries` than before), the DAG has another version. A clear of another
    task of the run begins a series, too: what this task has finished is then found where it was published.
    """
    clears = getattr(dag_run, "clear_number", None) or 0
    return f"{clears}-{ti.max_tries}-{getattr(ti, 'dag_version_id', None) or ''}"


@dataclass(frozen=True)
class LeftJob:
    """A job that may run on a cluster that its task no longer uses.

    :param cluster: its identity.
    """

    cluster: str
    submission_id: Annotated[str, pydantic.Field(pattern=_JOB_ID)]


@dataclass(frozen=True)
class JobRecord:
    """In Airflow's task state store, which survives retries, clears, and the deaths of workers and
    triggerers; in what Airflow keeps for a deferred task's resume; and, as it was when the job was submitted,
    in the job's metadata.

    :param cluster: identity of the job's cluster.
    :param spec_hash: hash of the spec and its code; "" when the record cannot tell.
    :param fingerprint: for people who read the record.
    :param try_number: of the attempt that waits for the job, or concluded it.
    :param try_series: that attempt's, see `try_series`; "" when the record cannot tell.
    :param commits_alone: whether the job runs on when the task is killed or marked (`cancel_on_kill=False`).
    :param submission_count: jobs that this attempt has submitted, with this one.
    :param result: `return_value` of a `concluded` job's task.
    :param left: jobs that are to be stopped once their clusters can be reached.
    :param decision: of a person about what a job staged, until it is carried out: `hold.Decision.to_json`.
    :param question: what a person is asked, and has not decided: a `hold.HeldSlice`.
    :param is_put: whether Airflow has it. Before, an answer may be to the one before.
    """

    phase: Literal["intent", "submitted", "ended", "concluded"]
    cluster: str
    submission_id: str
    nonce: str
    spec_hash: str
    fingerprint: str
    try_number: int
    try_series: str = ""
    commits_alone: bool = False
    submission_count: int = 1
    taken_over_at: float | None = None
    result: dict[str, Any] | None = None
    left: list[LeftJob] = field(default_factory=list)
    decision: dict[str, Any] | None = None
    question: dict[str, Any] | None = None
    is_put: bool = False
    record_format: int = FORMAT

    @classmethod
    def from_json(cls, value: Any) -> JobRecord | None:
        """Returns None for what names no job. Of a record that another version of the provider wrote, and
        this one cannot read, only the job is known: not what it was asked."""
        names = ("cluster", "submission_id")
        cluster, job_id = (value.get(n) if isinstance(value, Mapping) else None for n in names)
        if not (isinstance(cluster, str) and isinstance(job_id, str) and _JOB_ID.fullmatch(job_id)):
            return None
        try:
            record = _adapter().validate_python(value)
        except pydantic.ValidationError:
            pass
        else:
            if record.record_format <= FORMAT:
                return record
        return cls("submitted", cluster, job_id, nonce="", spec_hash="", fingerprint="", try_number=0)

    @classmethod
    def of_listed_job(cls, job: ListedJob, cluster: str) -> JobRecord:
        kept = {name: job.metadata.get(name) for name in (*_IN_METADATA, "try_number")}
        kept[SERIES] = job.metadata.get(SERIES, "")
        known = {"phase": "submitted", "cluster": cluster, "submission_id": job.submission_id}
        return cast("JobRecord", cls.from_json({**kept, **known}))

    def to_metadata(self) -> dict[str, str]:
        """Returns what Ray keeps with the job, beside the task and the try that submitted it."""
        return {name: str(getattr(self, name)) for name in _IN_METADATA}

    @property
    def is_over(self) -> bool:
        """Whether no attempt has to look at the job again."""
        return self.phase in ("ended", "concluded")

    def conclude(self, result: dict[str, Any], try_number: int) -> JobRecord:
        return replace(self, phase="concluded", result=result, try_number=try_number)

    def answers(self, spec_hash: str, series: str) -> bool:
        """Whether what the job has published is what an attempt asks for: not when somebody cleared the task
        since, and so asked anew.

        :param spec_hash, series: of the attempt.
        """
        return self.spec_hash == spec_hash and self.try_series == series

    def is_left_to(self, spec_hash: str, series: str, try_number: int) -> bool:
        """Whether it is of an earlier try, which an attempt goes on with.

        :param spec_hash, series, try_number: of the attempt.
        """
        return self.try_number < try_number and self.answers(spec_hash, series)


@cache
def _adapter() -> pydantic.TypeAdapter[JobRecord]:
    return pydantic.TypeAdapter(JobRecord)


def hash_of(submission: JobSubmission) -> str:
    """Hash of the spec, which holds the user's code's hash, and the environment, without credentials and
    prices: another one in Airflow's configuration is no reason to leave a job."""
    spec = submission.job.model_dump(mode="json")
    spec["engine"].pop("gpu_hour_price", None)
    content = json.dumps([spec, submission.runtime_env], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def find_listed_job(jobs: Iterable[ListedJob], metadata: Mapping[str, str]) -> ListedJob | None:
    """Returns a task's newest job; one that runs rather than one that ended.

    The names of a DAG, a run and a task do not tell two Airflows apart that share a cluster, nor a run that
    was deleted and made again: the run's start does, and for a job that runs, the DAG's version. A clear
    starts a finished run anew, and asks anew: what has ended before is not its job.

    :param metadata: of the job that the task would submit.
    """

    def is_same(name: str, theirs: Mapping[str, str]) -> bool:
        return bool(metadata[name]) and theirs.get(name) == metadata[name]

    def counts(job: ListedJob) -> bool:
        theirs = job.metadata
        if PHASE not in theirs or task_key(theirs) != task_key(metadata):
            return False
        is_same_run = is_same("run_start", theirs)
        if job.status in TERMINAL:
            return is_same_run and is_same(SERIES, theirs)
        return is_same_run or is_same("dag_version_id", theirs)

    own = filter(counts, jobs)
    return max(own, key=lambda job: (job.status not in TERMINAL, job.started_at or 0.0), default=None)


@dataclass(frozen=True)
class DeferredJob:
    """A job that a task waits for in the triggerer, its slice and its record."""

    ref: JobRef
    slice_job: SliceJob
    record: JobRecord

    def to_kwargs(self) -> dict[str, Any]:
        """Returns what Airflow keeps for the resume (JSON)."""
        return {
            "job": asdict(self.ref),
            "spec": self.slice_job.model_dump(mode="json", exclude_defaults=True),
            "record": asdict(self.record),
        }

    @classmethod
    def from_kwargs(cls, job: Any, spec: Any, record: Any) -> DeferredJob | None:
        """Returns None for what another version of the provider kept, and this one cannot read."""
        known = JobRecord.from_json(record)
        try:
            return (
                cls(JobRef.of(job), SliceJob.model_validate(spec), known) if job and spec and known else None
            )
        except (TypeError, pydantic.ValidationError):
            return None
