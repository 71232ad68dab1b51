"""`RayLLMBatchOperator`: one slice of a table, answered by an LLM on a Ray cluster, published as Parquet.

The operator resolves the slice and writes the spec; `attempt` finds or submits the job; `waiting` waits for
it, here or in the triggerer; the operator makes the job's word the task's outcome. What the job does lives in
`processor/`, how the cluster is spoken to in `hooks/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from datetime import time as datetime_time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

import pydantic
import pydantic_core
from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout
from airflow.sdk.log import mask_secret

from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.exceptions import (
    BY_KIND,
    RayConnectionError,
    RayJobStoppedError,
    RayLLMInputError,
    RayLLMJobError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.lineage.assets import check_emit_partition, record_asset_events
from airflow_provider_raydatallm.lineage.openlineage import SliceLineage
from airflow_provider_raydatallm.links.ray import RayJobLink
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.aws_credentials import session_credentials_env
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task.arguments import (
    finish_time,
    is_rendered_later,
    makes_partitioned_runs,
    parse_finish_by,
    parse_seconds,
    timezone_of,
    to_json_schema,
    to_url,
)
from airflow_provider_raydatallm.task.job_cancel import TaskAttempt, stop_own_job
from airflow_provider_raydatallm.task.job_failure import explain_failure
from airflow_provider_raydatallm.task.job_tracker import JobTracker
from airflow_provider_raydatallm.task.job_verdict import (
    ClusterUnreachable,
    EndedWithoutReport,
    Failed,
    Finished,
    TimedOut,
    Verdict,
    from_event,
)
from airflow_provider_raydatallm.task.job_waiter import JobRef, wait_for_job
from airflow_provider_raydatallm.task.slice_key import SliceKey, SliceKeyError, resolve_slice_key

if TYPE_CHECKING:
    from airflow.sdk import Context, ObjectStoragePath

T = TypeVar("T")

#: Airflow kills a task's process 5 seconds after it told it to end.
_STOP_SECONDS = 4.0
#: The operator's arguments that are the spec's fields of the same name.
_SPEC_ARGUMENTS = tuple(
    name
    for name in SliceJob.model_fields
    if name not in ("version", "slice_key", "slice_instant", "slice_timezone", "code_hash")
)


class RayLLMBatchOperator(SliceLineage, BaseOperator):
    """Run an LLM over one slice of a table on a Ray cluster and publish the answers as Parquet.

    The slice key is, in this order: `slice_key`; the run's partition key; the Param `slice`; the data
    interval's start; the logical date (both formatted by `slice_format` in the schedule's timezone). All
    input columns are kept, in input order; the answers stand beside them. The slice folder also gets
    `_manifest.json`, `_report.json` and `_SUCCESS`.

    A slice that is already published with the same configuration and unchanged input is left as it is: no
    engine starts. When the task fails, nothing is published and what was published before stays.

    Arguments that cannot work are refused when the DAG is parsed, templated ones when they are rendered, and
    what only the data or the cluster can tell (a missing column, too few GPUs) before an engine starts; none
    of these is retried.

    :param ray_conn_id: connection of type `ray`; its host `local` means an embedded Ray on this machine.
        (templated)
    :param input_path: a file, folder, glob or dataset root of Parquet, CSV or JSON Lines files; `{slice}`
        stands for the slice key. (templated)
    :param output_path: root of the published table. Without `{slice}` in it the slice goes to
        `<output_path>/ds=<slice key>/`. (templated)
    :param model_source: a hub id, a folder that every node has, or an `s3://` address. (templated)
    :param prompt: the user message; `{column}` fields are replaced by the row's values, other braces stay.
        (templated; use `airflow.sdk.literal` for prompts with double braces)
    :param system_prompt: the system message, with fields as in `prompt`. (templated)
    :param choices: the answer is one of these texts. (templated)
    :param output_schema: the answer is JSON of this schema: a pydantic model class or a JSON schema.
        Published as a struct when the schema says all of it, else as JSON text. Invalid answers (cut at
        max_tokens) become null and are counted.
    :param regex: the answer matches this expression.
    :param grammar: the answer follows this grammar (EBNF).
    :param sampling_params: vLLM's sampling parameters. A value that is exactly `"{column}"` is taken from the
        row. (templated)
    :param chat_template_kwargs: passed to the model's chat template, such as `{"enable_thinking": False}`.
        (templated)
    :param output_column: name of the answer's column; must not be a column of the input. (templated)
    :param slice_key: text that names the slice. (templated)
    :param slice_column: `input_path` is a dataset root; only rows (or Hive folders) where this column is the
        slice key are read.
    :param slice_format: `strftime` format of the key when it comes from a date. An hourly DAG needs an hourly
        one.
    :param input_format: `parquet`, `csv`, `jsonl`, or `auto` to go by the files' names.
    :param columns: input columns to keep; all by default. Leaves heavy ones out of the output. (templated)
    :param column_types: Arrow types of CSV and JSON Lines columns, such as `{"amount": "float64"}`; CSV
        columns are strings otherwise.
    :param csv_options: `delimiter`, `quote_char`, `escape_char` and `encoding` of CSV files that are not RFC
        4180 in UTF-8.
    :param max_rows: answer only the first rows, into `_trial/` beside the real slices. (templated; empty
        means all)
    :param on_empty: what to do when the slice has no rows: `fail`, `skip` the task, or `publish` an empty
        slice.
    :param on_config_change: what to do when the slice is published with another configuration: `fail`, or
        `recompute` and replace it.
    :param on_input_change: what to do when the slice is published, or half finished, from other input files:
        `fail`, `recompute` and replace it, or `extend`: new files are added, and finished rows stay as they
        are.
    :param on_running: what to do when another run is at work on the slice: `attach` and wait for its result
        (a run that died is taken over), or `fail`.
    :param force_rerun: answer a finished slice again, every time the task runs.
    :param max_row_attempts: how often a row is tried in all before it goes to quarantine.
    :param max_quarantine_fraction: share of the slice's rows that may fail for their own reasons; with more,
        the task fails and publishes nothing. What was answered is kept for the next run.
    :param retry_quarantined: of a finished slice, answer the rows in its quarantine again.
    :param max_file_bytes: a slice is published as one file up to about this size, in several beyond.
    :param file_per_input: publish one file for each input file instead.
    :param keep_versions: published versions that are kept, under `_versions/`, when a slice is replaced.
    :param preprocess: `"package.module:function"`, which makes a row (dict) into a prompt, or into a dict
        with `prompt` or `messages` and optionally `sampling_params`. Takes the place of `prompt`.
    :param postprocess: `"package.module:function"`, which makes a row (dict of the request's columns and the
        answer) into a dict of columns to publish.
    :param code_paths: folders or .py files of the code above, shipped with the job; by default the functions'
        own package.
    :param engine: who answers: `vllm`, fed by the provider; `ray_data_llm`, vLLM in Ray Data LLM's own
        processor; `auto`, which is `vllm` where it can; or `"package.module:Class"` of an engine of your own.
    :param engine_kwargs: vLLM's engine arguments. (templated) A `max_model_len` of "auto" is what the slice's
        rows need, by a sample of them.
    :param max_model_len_percentile: share of the rows, in percent, that is to fit into a `max_model_len` of
        "auto".
    :param on_too_long: what becomes of a row whose prompt and longest answer are over `max_model_len`:
        `quarantine`, when not even the prompt fits; `truncate` the end of the prompt's longest message; or
        `raise_limit`: such rows are answered after the others, by an engine with a higher limit.
    :param deduplicate: whether rows that ask the same are answered once. By default they are where the answer
        would be the same again: with temperature 0, or a seed.
    :param answer_cache: folder (`s3://...`, or a path that every node has) of answers that slices of the same
        model have from each other: what was asked before, and would be answered the same again, is not asked
        again. Slices may use it at once. Needs engine `vllm`, and what `deduplicate` says. (templated)
    :param answer_cache_max_bytes: bytes kept in it for each model and its settings; the oldest answers go
        first. A slice holds them in memory.
    :param answer_cache_max_days: days for which an answer is kept in it.
    :param processor_kwargs: options of Ray Data LLM's processor, whose engine is taken then: its stages
        (`tokenize_stage={"concurrency": 4}`), `placement_group_config`, `preprocess_map_kwargs`,
        `postprocess_map_kwargs`. (templated)
    :param engine_scope: `slice`: the engine ends with the slice. `shared`: it is left to other slices that
        ask for an equal one (model, engine arguments, accelerator, environment), which then start in seconds.
        (min, max) of `concurrency` is what it scales between. By default `shared` on an embedded Ray, where
        the engine can be shared, else `slice`.
    :param engine_idle_timeout: how long a shared engine stays without work; None keeps it. It gives way
        before, when another engine needs its place.
    :param max_shared_engines: shared engines that the cluster may hold when this slice starts another; it
        waits in the queue until one has ended. No limit by default.
    :param accelerator_type: Ray's name of the GPU that the workers need, such as `L4`.
    :param concurrency: engine workers: a number, (min, max) to scale between, or `"auto"`: as many as the
        cluster has GPUs for and the slice has work for.
    :param blocks: blocks that the rows are cut into. One for each batch unless given.
    :param batch_size: rows handed to a worker together. Sized by the provider unless given.
    :param max_concurrent_batches: batches that a worker holds at once. Sized by the provider unless given.
    :param runtime_env: Ray runtime environment of the job; the provider's modules are added. Do not put
        secrets in it: Ray shows it. (templated)
    :param model_conn_id: connection whose password is the model hub's access token; goes to the job as
        HF_TOKEN. Ray shows a job's environment to holders of the cluster's token. (templated)
    :param storage_conn_id: AWS connection that lends the job its credentials for `s3://` addresses: those of
        a session, which end by themselves. By default the job has the identity of the cluster's nodes. Ray
        shows a job's environment to holders of the cluster's token. (templated)
    :param allow_static_credentials: let the keys of `storage_conn_id` go to the job as they are, for stores
        without STS. Whoever sees them can use them until they are replaced.
    :param poll_interval: seconds between two looks at the job; at least 1.
    :param deferrable: wait in the triggerer, so that the task takes no worker while the job runs;
        `[operators] default_deferrable` by default.
    :param cancel_on_kill: stop the job when the task is cleared, marked, deleted, terminated or out of time.
        Finished rows are kept. If False the job runs on, and the task's next try waits for it.
    :param reconnect_timeout: how long the cluster may be away, or refuse the token, while the job runs.
    :param orphan_timeout: the job ends by itself, its finished rows kept, when no task has waited for it for
        so long; at least a minute. None lets it run to its end.
    :param stall_timeout: how long the job may answer without finishing a row. It then fails, which a retry
        helps: its finished rows are kept.
    :param finish_by: when the slice should be finished: a duration from the run's start, or a time of day
        (`"07:00"`, in the schedule's timezone). A job that will be late says so early, with the workers that
        it would have taken; it is not stopped.
    :param queue_timeout: how long the job may wait until all that its engine needs is free on the cluster at
        once.
    :param emit_partition: put the slice key on the events of the task's `outlets` as their partition, where
        the run has no partition key.
    """

    template_fields: Sequence[str] = (
        "ray_conn_id",
        "input_path",
        "output_path",
        "model_source",
        "prompt",
        "system_prompt",
        "choices",
        "sampling_params",
        "chat_template_kwargs",
        "output_column",
        "slice_key",
        "columns",
        "max_rows",
        "engine_kwargs",
        "answer_cache",
        "processor_kwargs",
        "runtime_env",
        "model_conn_id",
        "storage_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "sampling_params": "json",
        "engine_kwargs": "json",
        "processor_kwargs": "json",
        "chat_template_kwargs": "json",
        "runtime_env": "json",
    }
    operator_extra_links = (RayJobLink(),)
    ui_color = "#d6ecff"

    def __init__(
        self,
        *,
        input_path: str | ObjectStoragePath,
        output_path: str | ObjectStoragePath,
        model_source: str,
        prompt: str | None = None,
        system_prompt: str | None = None,
        choices: Sequence[str] | None = None,
        output_schema: type[pydantic.BaseModel] | dict[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        sampling_params: dict[str, Any] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        output_column: str = "answer",
        slice_key: str | None = None,
        slice_column: str | None = None,
        slice_format: str = "%Y-%m-%d",
        input_format: Literal["auto", "parquet", "csv", "jsonl"] = "auto",
        columns: Sequence[str] | None = None,
        column_types: dict[str, str] | None = None,
        csv_options: dict[str, str] | None = None,
        max_rows: int | str | None = None,
        on_empty: Literal["fail", "skip", "publish"] = "fail",
        on_config_change: Literal["fail", "recompute"] = "fail",
        on_input_change: Literal["fail", "recompute", "extend"] = "fail",
        on_running: Literal["attach", "fail"] = "attach",
        force_rerun: bool = False,
        max_row_attempts: int = 1,
        max_quarantine_fraction: float = 0.1,
        retry_quarantined: bool = False,
        max_file_bytes: int = 1 << 30,
        file_per_input: bool = False,
        keep_versions: int = 0,
        preprocess: str | None = None,
        postprocess: str | None = None,
        code_paths: Sequence[str] | None = None,
        engine: str = "auto",
        engine_kwargs: dict[str, Any] | None = None,
        max_model_len_percentile: float = 99.0,
        on_too_long: Literal["quarantine", "truncate", "raise_limit"] = "quarantine",
        deduplicate: bool | None = None,
        answer_cache: str | ObjectStoragePath | None = None,
        answer_cache_max_bytes: int = 1 << 30,
        answer_cache_max_days: float = 30,
        processor_kwargs: dict[str, Any] | None = None,
        engine_scope: Literal["slice", "shared"] | None = None,
        engine_idle_timeout: timedelta | float | None = timedelta(minutes=10),
        max_shared_engines: int | None = None,
        accelerator_type: str | None = None,
        concurrency: int | tuple[int, int] | Literal["auto"] = 1,
        blocks: int | None = None,
        batch_size: int | None = None,
        max_concurrent_batches: int | None = None,
        runtime_env: dict[str, Any] | None = None,
        ray_conn_id: str = RayHook.default_conn_name,
        model_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        allow_static_credentials: bool = False,
        poll_interval: float = 5.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        cancel_on_kill: bool = True,
        reconnect_timeout: timedelta | float = timedelta(minutes=10),
        orphan_timeout: timedelta | float | None = timedelta(hours=1),
        queue_timeout: timedelta | float = timedelta(days=1),
        stall_timeout: timedelta | float = timedelta(minutes=30),
        finish_by: timedelta | float | datetime_time | str | None = None,
        emit_partition: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_path = to_url(input_path)
        self.output_path = to_url(output_path)
        self.model_source = model_source
        self.prompt = prompt
        self.system_prompt = system_prompt
        self.choices = choices
        self.output_schema = to_json_schema(output_schema)
        self.regex = regex
        self.grammar = grammar
        self.sampling_params = sampling_params
        self.chat_template_kwargs = chat_template_kwargs
        self.output_column = output_column
        self.slice_key = slice_key
        self.slice_column = slice_column
        self.slice_format = slice_format
        self.input_format = input_format
        self.columns = columns
        self.column_types = column_types
        self.csv_options = csv_options
        self.max_rows = max_rows
        self.on_empty = on_empty
        self.on_config_change = on_config_change
        self.on_input_change = on_input_change
        self.on_running = on_running
        self.force_rerun = force_rerun
        self.max_row_attempts = max_row_attempts
        self.max_quarantine_fraction = max_quarantine_fraction
        self.retry_quarantined = retry_quarantined
        self.max_file_bytes = max_file_bytes
        self.file_per_input = file_per_input
        self.keep_versions = keep_versions
        self.preprocess = preprocess
        self.postprocess = postprocess
        self.code_paths = code_paths
        self.engine = engine
        self.engine_kwargs = engine_kwargs
        self.max_model_len_percentile = max_model_len_percentile
        self.on_too_long = on_too_long
        self.deduplicate = deduplicate
        self.answer_cache = to_url(answer_cache)
        self.answer_cache_max_bytes = answer_cache_max_bytes
        self.answer_cache_max_days = answer_cache_max_days
        self.processor_kwargs = processor_kwargs
        self.engine_scope = engine_scope
        self.engine_idle_timeout = parse_seconds("engine_idle_timeout", engine_idle_timeout, least=1)
        self.max_shared_engines = max_shared_engines
        self.accelerator_type = accelerator_type
        self.concurrency = concurrency
        self.blocks = blocks
        self.batch_size = batch_size
        self.max_concurrent_batches = max_concurrent_batches
        self.runtime_env = runtime_env
        self.ray_conn_id = ray_conn_id
        self.model_conn_id = model_conn_id
        self.storage_conn_id = storage_conn_id
        self.allow_static_credentials = allow_static_credentials
        self.poll_interval = parse_seconds("poll_interval", poll_interval, least=1)
        self.deferrable = deferrable
        self.cancel_on_kill = cancel_on_kill
        self.reconnect_timeout = parse_seconds("reconnect_timeout", reconnect_timeout, least=1)
        self.orphan_timeout = parse_seconds("orphan_timeout", orphan_timeout, least=60)
        parse_seconds("execution_timeout", self.execution_timeout, least=1)
        self.queue_timeout = parse_seconds("queue_timeout", queue_timeout, least=1)
        self.stall_timeout = parse_seconds("stall_timeout", stall_timeout, least=1)
        self.finish_by = parse_finish_by(finish_by)
        self.emit_partition = emit_partition
        check_emit_partition(self.outlets, emit_partition)
        self._killed = False
        self._at_work = False
        self._attempt: JobTracker | None = None
        #: Makes the waiting end.
        self._interrupt: Callable[[], object] | None = None
        if not isinstance(allow_static_credentials, bool):
            # The text "false" would allow them.
            raise ValueError(f"allow_static_credentials is {allow_static_credentials!r}: True or False")
        # What is templated or comes from another task is not known yet and is checked when it is rendered.
        known = {k: v for k, v in self._spec_arguments().items() if not is_rendered_later(v)}
        if "engine_kwargs" not in known and self.engine_kwargs is not None:
            known.pop("on_too_long", None)  # which needs a limit that they may hold
        stand_ins = {"input_path": "x", "output_path": "x", "model_source": "x"} | (
            {"prompt": "x"} if self.prompt is not None else {}
        )
        self._job({**stand_ins, **known}, SliceKey("x"))

    def execute(self, context: Context) -> dict[str, Any]:
        with self._running_attempt(context) as attempt:
            job = attempt.shipment.job
            self.log.info("Slice %s -> %s", job.slice_key, job.slice_path)
            if (found := attempt.find()) is not None:
                return self._wait(context, attempt, found)
            if (report := self._finished(attempt.shipment)) is not None:
                return self._result(context, attempt, report)
            return self._wait(context, attempt, attempt.submit())

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """What `execute` does after the waiting, when that was done in the triggerer."""
        with self._running_attempt(context) as attempt:
            return self._conclude(context, attempt, from_event(event))

    def on_kill(self) -> None:
        # Airflow calls this from a signal handler, amid whatever `execute` does, which goes on afterwards; or
        # when the task's time is over, after it has left `execute`.
        self._killed = True
        if self._interrupt is not None:
            self._interrupt()
        elif not self._at_work and self._attempt is not None and self._attempt.job is not None:
            asyncio.run(_closing_clients(self._stop(self._attempt.job, self._attempt.task)))

    @contextlib.contextmanager
    def _running_attempt(self, context: Context) -> Iterator[JobTracker]:
        self._at_work = True
        try:
            self._attempt = self._new_attempt(context)
            yield self._attempt
        finally:
            self._at_work = False

    def _new_attempt(self, context: Context) -> JobTracker:
        ti, shipment = context["ti"], self._shipment(context)
        if ti.map_index is not None and ti.map_index >= 0 and not context.get("map_index_template"):
            # Mapped tasks show their slice instead of a number.
            named = {"ray_llm_slice": shipment.job.slice_key, "map_index_template": "{{ ray_llm_slice }}"}
            cast("dict[str, Any]", context).update(named)
        deadline = None
        if self.deferrable and self.execution_timeout is not None:
            # Airflow minds it only while the task has a worker, and begins anew each time it gets one.
            deadline = (ti.start_date + self.execution_timeout).timestamp()
        waiting = JobRef(
            ray_conn_id=self.ray_conn_id,
            poll_interval=self.poll_interval,
            reconnect_timeout=self.reconnect_timeout,
            orphan_timeout=self.orphan_timeout,
            deadline=deadline,
            since=time.time(),
        )
        finish = None
        if self.finish_by is not None:
            dag, began = context["dag"], context["dag_run"].start_date or datetime.now(UTC)
            finish = finish_time(self.finish_by, began, timezone_of(dag)).timestamp()
        attempt = JobTracker(waiting, shipment, ti, context.get("task_state_store"), self.log, finish)
        self.record_run(shipment.job, ray_job_id=attempt.job.submission_id if attempt.job else None)
        return attempt

    def _wait(self, context: Context, attempt: JobTracker, job: JobRef) -> dict[str, Any]:
        self.record_run(attempt.shipment.job, ray_job_id=job.submission_id)
        context["ti"].xcom_push(RayJobLink.xcom_key, RayHook(job.ray_conn_id).job_url(job.submission_id))
        if self.deferrable and not self._killed:
            from airflow_provider_raydatallm.triggers.ray_job import RayJobTrigger

            self.defer(
                trigger=RayJobTrigger(asdict(job), self.cancel_on_kill), method_name="execute_complete"
            )
        verdict = asyncio.run(_closing_clients(self._until_over_or_killed(job, attempt.task)))
        return self._conclude(context, attempt, verdict)

    async def _until_over_or_killed(self, job: JobRef, attempt: TaskAttempt) -> Verdict:
        waiting = asyncio.ensure_future(wait_for_job(job, self.log))
        loop = asyncio.get_running_loop()
        self._interrupt = lambda: loop.call_soon_threadsafe(waiting.cancel)
        if self._killed:
            waiting.cancel()  # the signal came while the job was being submitted
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._killed:
                raise
            await self._stop(job, attempt)
            raise RayJobStoppedError("the task was killed") from None
        finally:
            self._interrupt = None

    async def _stop(self, job: JobRef, attempt: TaskAttempt) -> None:
        if not self.cancel_on_kill:
            self.log.info("Ray job %s runs on: the task's next try waits for it", job.submission_id)
            return
        await stop_own_job(job, attempt, self.log, deferred=False, within=_STOP_SECONDS)

    def _conclude(self, context: Context, attempt: JobTracker, verdict: Verdict) -> dict[str, Any]:
        """The task's outcome, from the job's; another job in place of one that was lost.

        :raises RayLLMInputError, RayLLMJobError, AirflowTaskTimeout: by what the job said, or left behind.
        """
        job = attempt.job
        if isinstance(verdict, TimedOut):
            raise AirflowTaskTimeout(f"execution_timeout {self.execution_timeout} is over")
        if isinstance(verdict, ClusterUnreachable):
            error = RayConnectionError if verdict.refused else RayUnreachableError
            name = job.submission_id if job is not None else "?"
            raise error(f"{verdict.message}. Ray job {name} may still run: the next try looks for it")
        if isinstance(verdict, EndedWithoutReport):
            self.log.warning("The job ended without a report; asking the store, which the cluster can read")
            verdict = self._ask_store(attempt) or verdict
        if isinstance(verdict, Finished):
            report = Report.model_validate(verdict.report)
            return self._result(context, attempt, report, verdict.started_at)
        ended = verdict.kind if isinstance(verdict, Failed) else verdict.why
        if ended in ("stopped", "unknown") and attempt.may_submit_again(stopped=ended == "stopped"):
            self.log.warning("The job is gone; another one goes on with the rows that are missing")
            return self._wait(context, attempt, attempt.submit())
        attempt.mark_ended()
        raise _error_of(verdict, job)

    def _ask_store(self, attempt: JobTracker) -> Finished | None:
        verdict = asyncio.run(_closing_clients(wait_for_job(attempt.submit_status(), self.log)))
        return Finished(verdict.report) if isinstance(verdict, Finished) else None

    def _finished(self, shipment: JobSubmission) -> Report | None:
        """The report of a slice for which there is nothing to do, if this machine can tell."""
        # Parsing a DAG file opens no storage.
        from airflow_provider_raydatallm.processor.store.published import finished_report

        return None if self._attach_elsewhere(shipment) else finished_report(shipment.job)

    def _result(
        self, context: Context, attempt: JobTracker, report: Report, started_at: float | None = None
    ) -> dict[str, Any]:
        """What goes to XCom. `started_at`: the start of the job whose report it is."""
        job, url = attempt.job, None
        total = time.time() - context["ti"].start_date.timestamp()
        if job is not None:
            url = RayHook(job.ray_conn_id).job_url(job.submission_id)
        attempt.clear()
        spec = attempt.shipment.job
        result = report.to_xcom(
            report_path=spec.report_path,
            ray_job_id=job.submission_id if job is not None and report.outcome != "unchanged" else None,
            dashboard_url=url,
            queued=_queued(started_at, total),
            total=round(total, 3),
        )
        self.record_run(spec, result=result)
        if report.outcome == "empty" and self.on_empty == "skip":
            raise AirflowSkipException(f"slice {report.slice_key!r} has no rows")
        self.log.info("%s: %s rows in %s", report.outcome, f"{report.counts.succeeded:,}", report.output_path)
        if report.seconds.start is not None and report.outcome == "published":
            self.log.info("Before the first row: %s", report.seconds.start)
        record_asset_events(
            self.outlets,
            context["outlet_events"],
            spec,
            result,
            partition_key=context.get("partition_key"),
            emit_partition=self.emit_partition,
        )
        return result

    def _shipment(self, context: Context) -> JobSubmission:
        ti = context["ti"]
        job, packages = self.slice_job(context)
        return JobSubmission(
            job=job,
            packages=packages,
            runtime_env=self.runtime_env,
            env_vars=self._env_vars(),
            metadata={
                "dag_id": ti.dag_id,
                "task_id": ti.task_id,
                "run_id": ti.run_id,
                "map_index": str(ti.map_index),
                "try_number": str(ti.try_number),
                "slice_key": job.slice_key,
            },
        )

    @staticmethod
    def _attach_elsewhere(shipment: JobSubmission) -> bool:
        """Whether the job is sent to another store than this machine's: looked for here, its buckets may be
        somebody else's of the same name."""
        given = {**((shipment.runtime_env or {}).get("env_vars") or {}), **shipment.env_vars}
        return any(n.startswith("AWS_ENDPOINT_URL") and os.environ.get(n) != v for n, v in given.items())

    def slice_job(self, context: Context) -> tuple[SliceJob, list[packages.Package]]:
        """The run's spec, and the user's code that it needs.

        :raises RayLLMInputError: naming the argument that cannot work.
        """
        dag, run = context["dag"], context["dag_run"]
        timezone = timezone_of(dag)
        try:
            key = resolve_slice_key(
                slice_key=self.slice_key,
                partition_key=context.get("partition_key"),
                param=context["params"].get("slice"),
                data_interval_start=context.get("data_interval_start"),
                logical_date=context.get("logical_date"),
                partitioned=makes_partitioned_runs(dag.timetable),
                timezone=timezone,
                slice_format=self.slice_format,
            )
        except SliceKeyError as e:
            raise RayLLMInputError(str(e)) from e
        user_packages = self._user_packages(Path(dag.fileloc).parent if dag.fileloc else None)
        scheduled = str(run.run_type) in ("scheduled", "backfill")
        instant = key.instant.isoformat() if key.instant is not None and scheduled else None
        job = self._job(
            self._spec_arguments(),
            key,
            slice_instant=instant,
            slice_timezone=str(timezone),
            code_hash=packages.code_hash(user_packages),
        )
        if self.engine_scope is None and job.can_share_engine and RayHook(self.ray_conn_id).is_local:
            job = job.model_copy(update={"engine_scope": "shared"})
        return job, user_packages

    def _user_packages(self, base: Path | None) -> list[packages.Package]:
        """The user's code. `base`: the DAG file's folder."""
        functions = [f for f in (self.preprocess, self.postprocess, self.engine) if f and ":" in f]
        return packages.user_packages(functions, self.code_paths, base)

    def _spec_arguments(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _SPEC_ARGUMENTS}
        given |= {name: to_url(given[name]) for name in ("input_path", "output_path", "answer_cache")}
        if isinstance(self.max_rows, str) and self.max_rows.strip() in ("", "None"):
            given["max_rows"] = None
        return {name: v for name, v in given.items() if v is not None or name == "engine_idle_timeout"}

    def _job(self, arguments: Mapping[str, Any], key: SliceKey, **more: Any) -> SliceJob:
        try:
            job = SliceJob.model_validate({**arguments, "slice_key": key.key, **more})
            job.model_dump_json()
            return job
        except pydantic_core.PydanticSerializationError as e:
            raise RayLLMInputError(
                f"{self.task_id}: an argument cannot be sent to the cluster as JSON: {e}"
            ) from e
        except pydantic.ValidationError as e:
            problems = []
            for error in e.errors(include_url=False):
                field = ".".join(str(part) for part in error["loc"])
                message = error["msg"].removeprefix("Value error, ")
                problems.append(f"{field}: {message} (got {error['input']!r:.200})" if field else message)
            raise RayLLMInputError(f"{self.task_id}: {'; '.join(problems)}") from None

    def _env_vars(self) -> dict[str, str]:
        variables: dict[str, str] = {}
        if self.storage_conn_id is not None:
            variables |= session_credentials_env(
                self.storage_conn_id,
                allow_static=self.allow_static_credentials,
                session_name=f"airflow-{self.dag_id[:27]}-{self.task_id[:28]}",
            )
        if self.model_conn_id is None:
            return variables
        token = RayHook.get_connection(self.model_conn_id).password
        if not token:
            raise RayLLMInputError(
                f"model_conn_id: connection {self.model_conn_id!r} has no password, which is the access token"
            )
        mask_secret(token)
        return {**variables, "HF_TOKEN": token}


async def _closing_clients(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    finally:
        await close_clients()


def _error_of(verdict: Failed | EndedWithoutReport, job: JobRef | None) -> Exception:
    """What to raise, the root of it first."""
    if isinstance(verdict, Failed):
        return BY_KIND.get(verdict.kind, RayLLMJobError)(verdict.message)
    name = job.submission_id if job is not None else "?"
    if verdict.why == "unknown":
        return RayLLMJobError(f"Ray job {name} is not known to the cluster any more; nothing is published")
    status = "STOPPED" if verdict.why == "stopped" else "FAILED"
    failure = explain_failure(status, verdict.message, verdict.last_lines)
    lines = [failure.message, f"Ray job {name} ended without a report, and nothing is published."]
    if verdict.last_lines:
        lines += ["Its last lines:", *verdict.last_lines]
    return BY_KIND[failure.kind]("\n".join(lines))


def _queued(started_at: float | None, total: float) -> float | None:
    """Seconds from the task's start to the job's; by this machine's clock and the cluster's."""
    if started_at is None:
        return None
    return round(min(max(started_at - (time.time() - total), 0.0), total), 3)
