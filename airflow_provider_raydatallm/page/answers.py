"""What the routes answer: the contract between the API and the page."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from airflow_provider_raydatallm.contract.result.report import History, LabelCounts, Report, WorkerShares
from airflow_provider_raydatallm.task.slice_entry import SliceFigures

State = Literal["published", "quarantined", "empty", "running", "held", "queued", "failed"]
CellState = Literal["published", "quarantined", "empty", "running", "held", "queued", "failed", "missing"]
#: Of tasks: what failed first, by their newest run, or by their names.
Order = Literal["urgency", "newest", "name"]


class FailureLine(BaseModel):
    """Why a try failed (`contract.result.failure.Failure`), as far as it is told in a list.

    :param place: what is known of its `Place`.
    :param row_texts: empty unless `[ray_llm] show_samples` allows them, as all that may quote a row.
    """

    kind: str
    code: str
    sentence: str
    advice: list[str]
    place: dict[str, str | int]
    counts: dict[str, int]
    row_texts: list[str]


class FailureStory(FailureLine):
    cause: str
    frames: list[str]
    log: list[str]
    log_of: str


class Try(BaseModel):
    number: int
    state: str | None
    started: datetime | None
    ended: datetime | None


class UpstreamTask(BaseModel):
    """A task of the same run, of a mapped one the first instance, that failed before this one could run."""

    task_id: str
    map_index: int = -1


class Reason(BaseModel):
    """What else tells why a run failed of which Airflow has no record, or that something stopped.

    :param failure: as the table's metadata have it, where Airflow has no record.
    :param is_marked: whether a person marked it, or its run, as failed.
    :param marked_by: who, where the user may read Airflow's audit log.
    """

    failure: FailureStory | None = None
    is_marked: bool = False
    marked_by: str | None = None


class SliceLine(SliceFigures):
    """One run of one slice.

    :param timezone: of the schedule as it is now, where that can be known; else as it was.
    :param table: the slice's folder: a task may be mapped over tables that have slices of the same name.
    :param archived: whether Airflow has removed the run itself: the state is then the last that was known.
    :param failure: of its last try, when that failed; None where it left no record: it was marked, or its
        worker died.
    :param upstream: the tasks whose failure kept it from running, as far as they are known; else None.
    """

    table: str
    run_id: str
    map_index: int = -1
    try_number: int | None = None
    state: State
    started: datetime | None = None
    ended: datetime | None = None
    archived: bool = False
    failure: FailureLine | None = None
    upstream: list[UpstreamTask] | None = None


class RunWithoutSlice(BaseModel):
    """A run whose task has not come to its slice: any that failed before, and of the schedule or a backfill
    also one that waits or was skipped.

    :param slice_key: of the slice that it would be; None where only the run knows.
    :param failure, upstream: as of a `SliceLine`.
    """

    run_id: str
    map_index: int = -1
    state: State
    slice_key: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    failure: FailureLine | None = None
    upstream: list[UpstreamTask] | None = None


class TaskRun(BaseModel):
    """One run of a task that has not come to its slice."""

    line: RunWithoutSlice
    failure: FailureStory | None = None
    tries: list[Try]


class DateWithoutRun(BaseModel):
    """
    :param slice_key: of the slice that its run would make.
    :param date: of the run, as Airflow's backfill takes it.
    :param archived: whether a run of the slice was there, which Airflow has removed.
    """

    slice_key: str
    date: datetime
    archived: bool = False


class DatesWithoutRun(BaseModel):
    """Dates of which the schedule, or a backfill, was to make a run, and of which there is none.

    :param dates: the newest first, and no more than a page shows.
    :param total: of all of them.
    :param is_pending: whether the timetable is still being asked.
    :param note: why it is not known which slices there should be.
    """

    dates: list[DateWithoutRun] = []
    total: int = 0
    is_pending: bool = False
    note: str | None = None


class SlicesPage(BaseModel):
    """Runs of slices, the newest first; of several runs of a slice, the first is its state.

    :param without_slice, without_run: on the first page, the newest first.
    :param unreadable: how many entries of this page another version of the provider wrote.
    """

    slices: list[SliceLine]
    total: int
    without_slice: list[RunWithoutSlice] = []
    unreadable: int = 0
    without_run: DatesWithoutRun = DatesWithoutRun()


class SliceMark(BaseModel):
    """One slice of a task among its last.

    :param slice_key: None where only the run would know it.
    :param run_id: of its newest run; None where there is none.
    :param has_slice: whether that run came to its slice, which then has a page.
    """

    slice_key: str | None
    state: CellState
    run_id: str | None = None
    map_index: int = -1
    has_slice: bool = False


class FailedSlice(BaseModel):
    """
    :param others: how many other reasons the task's slices failed for.
    """

    mark: SliceMark
    failure: FailureLine | None
    upstream: list[UpstreamTask] | None = None
    others: int = 0


class TaskLine(BaseModel):
    """
    :param newest: when the newest run began.
    :param states: how many slices of the newest runs are in each.
    :param last: of these slices, the last by their names, in their order.
    :param is_all: whether these are all of the task's runs.
    :param failed: the last slice that failed.
    """

    dag_id: str
    task_id: str
    dag_name: str
    is_paused: bool
    runs: int
    newest: datetime | None
    states: dict[CellState, int]
    last: list[SliceMark]
    is_all: bool
    failed: FailedSlice | None


class TasksPage(BaseModel):
    tasks: list[TaskLine]
    total: int


class AssetLine(BaseModel):
    id: int
    name: str


class SliceRun(BaseModel):
    """One run of a slice, and all that Airflow knows of it.

    :param assets: that the task updates, as far as the user may read them.
    :param history: runs of the same slice, with this one, the newest first.
    :param to_change: what would keep the rows out of quarantine that this run put there.
    """

    line: SliceLine
    failure: FailureStory | None = None
    output_path: str
    output_url: str | None
    assets: list[AssetLine]
    ray_job_id: str | None
    ray_job_url: str | None
    tries: list[Try]
    history: list[SliceLine]
    to_change: list[str] = []


class Version(BaseModel):
    number: int
    counts: dict[str, int | None]
    labels: LabelCounts | None
    fingerprint: str
    model: str | None


class Progress(BaseModel):
    """Of a run that goes on.

    :param phase: what it does, in the words of the command line.
    :param when: this was written.
    """

    step: str | None = None
    phase: str | None = None
    when: datetime | None = None
    rows: int | None = None
    planned: int | None = None
    failed: int | None = None
    workers: int | None = None
    rows_per_s: float | None = None
    recent_rows_per_s: float | None = None
    eta_s: float | None = None
    per_worker: WorkerShares | None = None
    history: History | None = None


class Stored(BaseModel):
    """What the slice's folder tells.

    :param note: why something is missing here.
    """

    report: Report | None = None
    progress: Progress | None = None
    versions: list[Version] = []
    note: str | None = None


class Sample(BaseModel):
    """:param rows: cells as text; None for null."""

    columns: list[str] = []
    rows: list[list[str | None]] = []
    note: str | None = None


class Settings(BaseModel):
    """`[ray_llm]` in Airflow's configuration. Money per hour of a GPU; None: costs are not shown."""

    show_samples: bool
    gpu_hour_price: float | None
    currency: str
