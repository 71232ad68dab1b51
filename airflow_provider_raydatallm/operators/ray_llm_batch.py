"""`RayLLMBatchOperator`: runs an LLM over one slice of a table on a Ray cluster and publishes Parquet.

The operator resolves the slice and builds the job (`task.submission`), finds or submits it
(`task.job_tracker`), waits for it here or in the triggerer (`task.job_waiter`), and turns its verdict into
the task's outcome (`task.outcome`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from datetime import time as datetime_time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout

from airflow_provider_raydatallm.contract.progress_text import result_lines
from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.exceptions import RayJobStoppedError
from airflow_provider_raydatallm.hooks.http_clients import close_clients
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.lineage.assets import check_emit_partition, record_asset_events
from airflow_provider_raydatallm.lineage.openlineage import SliceLineage
from airflow_provider_raydatallm.links.ray import RayJobLink
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task import arguments, job_verdict, submission
from airflow_provider_raydatallm.task.job_cancel import TaskAttempt, stop_own_job
from airflow_provider_raydatallm.task.job_record import DeferredJob
from airflow_provider_raydatallm.task.job_tracker import JobTracker
from airflow_provider_raydatallm.task.job_waiter import JobRef, wait_for_job
from airflow_provider_raydatallm.task.log_entries import clean
from airflow_provider_raydatallm.task.outcome import build_result, error_of
from airflow_provider_raydatallm.task.slice_key import chosen_slice, resolve_slice_key
from airflow_provider_raydatallm.task.submission_gate import SubmissionGate
from airflow_provider_raydatallm.task.submission_queue import QueuePlace, raise_error_of

if TYPE_CHECKING:
    import pydantic
    from airflow.sdk import Context, ObjectStoragePath

    from airflow_provider_raydatallm.contract.spec import SliceJob

T = TypeVar("T")

#: Airflow kills a task's process 5 seconds after SIGTERM.
_STOP_SECONDS = 4.0
#: A job that was held for longer is built anew: its lent credentials are to last for the job.
_CREDENTIALS_SECONDS = 60.0


class RayLLMBatchOperator(SliceLineage, BaseOperator):
    """Run an LLM over one slice of a table on a Ray cluster and publish the answers as Parquet.

    The slice key is the first of: `slice_key`; the run's partition key; the Param `slice`, if a person's run
    sets it; the data interval's start; the logical date (dates are formatted by `slice_format` in the
    schedule's timezone). The
    output has all input columns, in input order, and the answer. The slice's folder holds Parquet files and
    an empty `_SUCCESS`; metadata and quarantined rows lie beside the table.

    A slice already published with the same configuration and unchanged input is left alone: no engine starts.
    A task that fails publishes nothing and leaves the published version in place.

    Nearly all arguments are templates (`template_fields`); text such as "true" and "0.12" becomes what the
    argument needs. Code is not (functions, classes, `runtime_env`, vLLM's `trust_remote_code`): whoever may
    trigger a run cannot choose it. Invalid arguments fail when the DAG is parsed, templated ones when they
    are rendered, and what only the data or the cluster shows (a missing column, too few GPUs) fails before an
    engine starts. None of these is retried. Ray shows a job's environment to holders of the cluster's token.

    :param ray_conn_id: connection of type `ray`; host `local` means an embedded Ray on this machine.
    :param input_path: file, folder, glob or dataset root of Parquet, CSV or JSON Lines files; `{slice}`
        stands for the slice key.
    :param output_path: root of the published table. Without `{slice}`, the slice goes to
        `<output_path>/ds=<slice key>/`.
    :param model_source: hub id, folder on every node, or `s3://` address.
    :param prompt: user message; `{column}` is replaced by the row's value, other braces stay. Wrap prompts
        with double braces in `airflow.sdk.literal`.
    :param system_prompt: system message, with `{column}` fields as in `prompt`.
    :param choices: the answer is one of these texts.
    :param output_schema: the answer is JSON of this schema: a pydantic model class or a JSON schema.
        Published as a struct when the schema fixes every field, else as JSON text. Rows with an invalid
        answer (cut at max_tokens, or with a key that the struct lacks) go to quarantine. `$ref` may point
        into the schema only.
    :param regex: the answer matches this expression.
    :param grammar: the answer follows this grammar (EBNF).
    :param sampling_params: vLLM's sampling parameters. A value that is exactly `"{column}"` comes from the
        row.
    :param chat_template_kwargs: arguments of the chat template, such as `{"enable_thinking": False}`.
    :param output_column: name of the answer's column; must not exist in the input.
    :param slice_key: names the slice.
    :param slice_column: reads only rows (or Hive folders) of the dataset `input_path` whose column equals the
        slice key.
    :param slice_format: `strftime` format of a key that comes from a date. An hourly DAG needs an hourly one.
    :param input_format: `parquet`, `csv`, `jsonl`, or `auto`: by file name.
    :param columns: input columns to keep in the output. Default: all.
    :param column_types: Arrow types of CSV (default: string) and JSON Lines columns: `{"amount": "float64"}`.
    :param csv_options: `delimiter`, `quote_char`, `escape_char`, `encoding` of CSV files other than RFC 4180
        in UTF-8.
    :param max_rows: answer only the first rows, into a table of its own, `<table>.trial/first-<n>/`. Empty:
        all.
    :param on_empty: when the slice has no rows: `fail`, `skip` the task, or `publish` an empty slice.
    :param on_config_change: when the slice is published with another configuration: `fail` or `recompute`.
    :param on_input_change: when the slice is published, or half finished, from other input files: `fail`,
        `recompute`, or `extend`: add new files and keep finished rows.
    :param on_running: when another run works on the slice: `fail`, or `attach`: wait for its result, and take
        over if it died.
    :param force_rerun: recompute a finished slice every time the task runs.
    :param max_row_attempts: attempts per row, in all, before it goes to quarantine.
    :param max_quarantine_fraction: share of rows that may fail for their own reasons. Above it the task fails
        and publishes nothing; finished rows are kept for the next run.
    :param retry_quarantined: answer the quarantined rows of a finished slice again.
    :param max_file_bytes: approximate size above which a slice is published as several files.
    :param file_per_input: publish one file per input file instead.
    :param keep_versions: how many replaced versions stay readable and can be restored.
    :param metadata_path: folder of the table's plans, checkpoints, commits and reports. Default:
        `<table>.ray_llm/`, beside the table.
    :param quarantine_path: table of the rows that failed. Default: `<table>.quarantine/`.
    :param verify: how a finished slice is checked: `listing` its files, or also reading their `content`.
    :param preprocess: `"package.module:function"` that turns a row (dict) into a prompt, or a dict with
        `prompt` or `messages` and optionally `sampling_params`. Replaces `prompt`.
    :param postprocess: `"package.module:function"` that turns a row (dict of the request's columns and the
        answer) into a dict of columns to publish. Its return annotation (a TypedDict, dataclass or pydantic
        model) decides the columns' types, else the first answers do; other types go to quarantine.
    :param code_paths: folders or .py files of that code, sent with the job. Default: the functions' package.
    :param engine: `vllm`, fed by the provider; `ray_data_llm`, vLLM in Ray Data LLM's own processor; `auto`:
        `vllm` where possible; or `"package.module:Class"` of your own engine.
    :param engine_kwargs: vLLM's engine arguments. A `max_model_len` of "auto" is estimated from a sample of
        rows.
    :param max_model_len_percentile: percentage of rows that must fit into a `max_model_len` of "auto".
    :param on_too_long: how to handle rows whose prompt plus max_tokens exceeds `max_model_len`: `quarantine`
        those whose prompt alone does not fit; `truncate` the end of the prompt's longest message; or
        `raise_limit`: answer them last, with an engine that has a higher limit.
    :param deduplicate: run identical requests once. Default: only when sampling is deterministic (temperature
        0, or a seed).
    :param answer_cache: folder (`s3://...`, or a path on every node) in which slices of the same model, also
        concurrent ones, share answers to identical requests. Needs engine `vllm`, and follows `deduplicate`.
    :param answer_cache_max_bytes: size of the cache per model and settings; the oldest answers go first. A
        slice holds them in memory.
    :param answer_cache_max_days: days for which the cache keeps an answer.
    :param processor_kwargs: options of Ray Data LLM's processor, which `auto` then selects: its stages
        (`tokenize_stage={"concurrency": 4}`), `placement_group_config`, `preprocess_map_kwargs`,
        `postprocess_map_kwargs`.
    :param engine_scope: `slice`: the engine ends with the slice. `shared`: it stays for slices that need an
        equal one (model, engine arguments, accelerator, environment), which then start in seconds; it scales
        within a `concurrency` of (min, max). Default: `shared` on an embedded Ray where possible, else
        `slice`.
    :param engine_idle_timeout: idle time after which a shared engine ends; None: never. It ends sooner when
        another engine needs its resources.
    :param max_shared_engines: shared engines on the cluster above which this slice queues before it starts
        another.
    :param accelerator_type: Ray's name of the GPU that the workers need, such as `L4`.
    :param concurrency: engine workers: a number, (min, max) to scale between, or `"auto"`: as many as the
        cluster's GPUs and the slice's work allow.
    :param blocks: blocks to cut the rows into. Default: one per batch.
    :param batch_size: rows that go to a worker together, and the next ones when all of them are finished.
        Default: rows are admitted one by one with engine "vllm", else chosen by the provider.
    :param max_concurrent_batches: batches per worker at once, of 128 rows without `batch_size`. Default:
        chosen by the provider.
    :param runtime_env: Ray runtime environment of the job, without secrets; the provider adds its modules.
    :param model_conn_id: connection (of type huggingface, http or generic) whose password is the model hub's
        access token; the job gets it as HF_TOKEN.
    :param storage_conn_id: AWS connection from which the job gets session credentials for `s3://` addresses.
        Default: the identity of the cluster's nodes.
    :param allow_static_credentials: send the keys of `storage_conn_id` as they are, for stores without STS.
        They stay valid until they are replaced.
    :param poll_interval: seconds between two status checks of the job; at least 1.
    :param deferrable: wait in the triggerer, so that the task uses no worker while the job runs. Default:
        `[operators] default_deferrable`.
    :param cancel_on_kill: stop the job when the task is cleared, marked, deleted, terminated or timed out.
        Finished rows are kept. If False, the job runs on, and publishes, and the task's next try waits for
        it.
    :param reconnect_timeout: how long the cluster may be away, or refuse the token, while the job runs.
    :param orphan_timeout: time without a waiting task after which the job ends, with finished rows kept; at
        least a minute. Meanwhile it publishes nothing. None: it never ends, and publishes.
    :param stall_timeout: time without a finished row after which the job fails. A retry keeps finished rows.
    :param finish_by: when the slice should be finished: a duration from the run's start, or a time of day
        (`"07:00"`, in the schedule's timezone). A job that will be late logs this early, with the workers it
        would need; it is not stopped.
    :param log: what the task's log shows of the job's: `brief`, the provider's own lines, with the cause when
        the job fails; or `full`, also all that Ray, vLLM and your code print.
    :param queue_timeout: how long the slice may wait until all resources of its engine are free at once,
        before its job is submitted and after.
    :param emit_partition: set the slice key as partition on the events of `outlets` when the run has no
        partition key.
    """

    template_fields: Sequence[str] = (
        "ray_conn_id", "input_path", "output_path", "model_source", "prompt", "system_prompt", "choices",
        "regex", "grammar", "sampling_params", "chat_template_kwargs", "output_column", "slice_key",
        "slice_column", "slice_format", "input_format", "columns", "column_types", "csv_options", "max_rows",
        "on_empty", "on_config_change", "on_input_change", "on_running", "force_rerun", "max_row_attempts",
        "max_quarantine_fraction", "retry_quarantined", "max_file_bytes", "file_per_input", "keep_versions",
        "metadata_path", "quarantine_path", "verify", "engine_kwargs", "max_model_len_percentile",
        "on_too_long", "deduplicate", "answer_cache", "answer_cache_max_bytes", "answer_cache_max_days",
        "processor_kwargs", "engine_scope", "max_shared_engines", "accelerator_type", "concurrency", "blocks",
        "batch_size", "max_concurrent_batches", "model_conn_id", "storage_conn_id",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(
        ("sampling_params", "engine_kwargs", "processor_kwargs", "chat_template_kwargs", "column_types"),
        "json",
    )
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
        keep_versions: int = 1,
        metadata_path: str | ObjectStoragePath | None = None,
        quarantine_path: str | ObjectStoragePath | None = None,
        verify: Literal["listing", "content"] = "listing",
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
        orphan_timeout: timedelta | float | None = timedelta(minutes=30),
        queue_timeout: timedelta | float = timedelta(days=1),
        stall_timeout: timedelta | float = timedelta(minutes=30),
        finish_by: timedelta | float | datetime_time | str | None = None,
        emit_partition: bool = False,
        log: Literal["brief", "full"] = "brief",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_source, self.prompt, self.system_prompt = model_source, prompt, system_prompt
        self.choices, self.regex, self.grammar = choices, regex, grammar
        self.sampling_params, self.chat_template_kwargs = sampling_params, chat_template_kwargs
        self.slice_key, self.slice_column, self.slice_format = slice_key, slice_column, slice_format
        self.input_format, self.columns, self.output_column = input_format, columns, output_column
        self.column_types, self.csv_options, self.max_rows = column_types, csv_options, max_rows
        self.on_empty, self.on_running, self.force_rerun = on_empty, on_running, force_rerun
        self.on_config_change, self.on_input_change = on_config_change, on_input_change
        self.max_row_attempts, self.retry_quarantined = max_row_attempts, retry_quarantined
        self.max_quarantine_fraction = max_quarantine_fraction
        self.max_file_bytes, self.file_per_input = max_file_bytes, file_per_input
        self.preprocess, self.postprocess, self.code_paths = preprocess, postprocess, code_paths
        self.engine, self.engine_kwargs, self.processor_kwargs = engine, engine_kwargs, processor_kwargs
        self.max_model_len_percentile, self.on_too_long = max_model_len_percentile, on_too_long
        self.deduplicate, self.keep_versions, self.verify = deduplicate, keep_versions, verify
        self.answer_cache_max_bytes = answer_cache_max_bytes
        self.answer_cache_max_days = answer_cache_max_days
        self.engine_scope, self.max_shared_engines = engine_scope, max_shared_engines
        self.accelerator_type, self.concurrency = accelerator_type, concurrency
        self.blocks, self.batch_size, self.max_concurrent_batches = blocks, batch_size, max_concurrent_batches
        self.runtime_env, self.ray_conn_id = runtime_env, ray_conn_id
        self.model_conn_id, self.storage_conn_id = model_conn_id, storage_conn_id
        self.allow_static_credentials = allow_static_credentials
        self.deferrable, self.cancel_on_kill, self.emit_partition = deferrable, cancel_on_kill, emit_partition
        self.input_path = arguments.to_url(input_path)
        self.output_path = arguments.to_url(output_path)
        self.output_schema = arguments.to_json_schema(output_schema)
        self.answer_cache = arguments.to_url(answer_cache)
        self.metadata_path = arguments.to_url(metadata_path)
        self.quarantine_path = arguments.to_url(quarantine_path)
        self.engine_idle_timeout = arguments.parse_optional_seconds(
            "engine_idle_timeout", engine_idle_timeout, min_s=1
        )
        self.poll_interval = arguments.parse_seconds("poll_interval", poll_interval, min_s=1)
        self.reconnect_timeout = arguments.parse_seconds("reconnect_timeout", reconnect_timeout, min_s=1)
        self.orphan_timeout = arguments.parse_optional_seconds("orphan_timeout", orphan_timeout, min_s=60)
        arguments.parse_optional_seconds("execution_timeout", self.execution_timeout, min_s=1)
        self.queue_timeout = arguments.parse_seconds("queue_timeout", queue_timeout, min_s=1)
        self.stall_timeout = arguments.parse_seconds("stall_timeout", stall_timeout, min_s=1)
        self.finish_by = arguments.parse_finish_by(finish_by)
        check_emit_partition(self.outlets, emit_partition)
        if log not in ("brief", "full"):
            raise ValueError(f"log is {log!r}: give 'brief' or 'full'")
        self.job_log = log
        self._killed = False
        #: Whether `execute` or `execute_complete` runs.
        self._executing = False
        self._tracker: JobTracker | None = None
        #: Interrupts the waiting.
        self._interrupt: Callable[[], object] | None = None
        if not isinstance(allow_static_credentials, bool):
            # The text "false" would allow them.
            raise ValueError(f"allow_static_credentials is {allow_static_credentials!r}: give True or False")
        # A schema's patterns may have braces of their own.
        arguments.check_not_templates(self, _OWN_ARGUMENTS - {*self.template_fields, "output_schema"})
        self._code_arguments = arguments.code_arguments(engine_kwargs)
        submission.check_arguments(
            self.task_id, {**submission.spec_arguments(self), "runtime_env": runtime_env}
        )

    def execute(self, context: Context) -> dict[str, Any]:
        return self._find_or_submit(context)

    def execute_in_turn(
        self, context: Context, event: dict[str, Any], place: dict[str, Any]
    ) -> dict[str, Any]:
        """Continues `execute` when it is this task's turn to submit its job, or it waited for too long.

        :param place: the `QueuePlace` of the task.
        """
        raise_error_of(event)
        return self._find_or_submit(context, QueuePlace(**place))

    def _find_or_submit(self, context: Context, place: QueuePlace | None = None) -> dict[str, Any]:
        with self._start_attempt(context) as tracker:
            job = tracker.submission.job
            self._name_mapped_task(context, job)
            self.record_run(job, ray_job_id=tracker.job.submission_id if tracker.job else None)
            self.log.info("Slice %s -> %s", job.slice_key, job.slice_path)
            if (result := tracker.lost_result()) is not None:
                self.log.info("An earlier try finished the slice, and ended before Airflow knew")
                return self._finish(context, job, result)
            if (running_job := tracker.find_job()) is not None:
                return self._wait(context, tracker, running_job)
            if (report := submission.read_finished_report(tracker.submission)) is not None:
                return self._succeed(context, tracker, job, None, report)
            return self._submit(context, tracker, place)

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any],
        job: dict[str, Any] | None = None,
        spec: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Continues `execute` after the waiting in the triggerer.

        :param job, spec: the job that the task waited for (`DeferredJob.to_kwargs`).
        """
        with self._start_attempt(context) as tracker:
            deferred = DeferredJob.from_kwargs(job, spec)
            slice_job = deferred.slice_job if deferred is not None else tracker.submission.job
            ref = deferred.ref if deferred is not None else tracker.job
            self._name_mapped_task(context, slice_job)
            self.record_run(slice_job, ray_job_id=ref.submission_id if ref else None)
            return self._conclude(context, tracker, slice_job, ref, job_verdict.from_event(event))

    def on_kill(self) -> None:
        # Airflow calls this from a signal handler, in the middle of `execute`, which continues afterwards; or
        # on a timeout, after it has left `execute`.
        self._killed = True
        if self._interrupt is not None:
            self._interrupt()
        elif not self._executing and self._tracker is not None and self._tracker.job is not None:
            _run_async(self._stop(self._tracker.job, self._tracker.task))

    @contextlib.contextmanager
    def _start_attempt(self, context: Context) -> Iterator[JobTracker]:
        self._executing = True
        try:
            self._tracker = self._build_tracker(context)
            yield self._tracker
        finally:
            self._executing = False

    def _build_tracker(self, context: Context) -> JobTracker:
        ti = context["ti"]
        deadline = None
        if self.deferrable and self.execution_timeout is not None:
            # Airflow enforces it only while the task has a worker, and starts anew each time it gets one.
            deadline = (ti.start_date + self.execution_timeout).timestamp()
        wait_options = JobRef(
            self.ray_conn_id, self.poll_interval, self.reconnect_timeout, self.orphan_timeout,
            deadline=deadline, since=time.time(), log=self.job_log,
        )  # fmt: skip
        finish_by = None
        if self.finish_by is not None:
            run_start = context["dag_run"].start_date or datetime.now(UTC)
            finish_by = arguments.finish_time(
                self.finish_by, run_start, arguments.schedule_timezone(context["dag"])
            ).timestamp()
        store = context.get("task_state_store")
        build = partial(self._build_submission, context)
        return JobTracker(wait_options, build, ti, store, self.log, finish_by, not self.cancel_on_kill)

    @staticmethod
    def _name_mapped_task(context: Context, job: SliceJob) -> None:
        """Mapped tasks show their slice instead of a number."""
        map_index = context["ti"].map_index
        if map_index is not None and map_index >= 0 and not context.get("map_index_template"):
            label = {"ray_llm_slice": job.slice_key, "map_index_template": "{{ ray_llm_slice }}"}
            cast("dict[str, Any]", context).update(label)

    def _submit(
        self, context: Context, tracker: JobTracker, place: QueuePlace | None = None
    ) -> dict[str, Any]:
        """Submits the job once few others wait for room on the cluster, and waits for it.

        :param place: of a task that has waited for that in the triggerer.
        """
        has_turn = place is not None
        place = place or tracker.queue_place(self.queue_timeout)
        defers = self.deferrable and not self._killed
        with contextlib.closing(SubmissionGate(place, self.log)) as gate:
            if not _run_async(self._unless_killed(gate.enter(has_turn=has_turn, holds=not defers))):
                from airflow_provider_raydatallm.triggers.submission_turn import SubmissionTurnTrigger

                kwargs = {"place": asdict(replace(place, local_head=RayHook(place.ray_conn_id).local_head))}
                self.defer(
                    trigger=SubmissionTurnTrigger(**kwargs), method_name="execute_in_turn", kwargs=kwargs
                )
            if gate.held_s > _CREDENTIALS_SECONDS:
                tracker.renew_submission()
            job = tracker.submit(place.waited_s)
        return self._wait(context, tracker, job)

    def _wait(self, context: Context, tracker: JobTracker, job: JobRef) -> dict[str, Any]:
        slice_job = tracker.submission.job
        self.record_run(slice_job, ray_job_id=job.submission_id)
        hook = RayHook(job.ray_conn_id)
        job = replace(job, url=hook.job_url(job.submission_id))
        context["ti"].xcom_push(RayJobLink.xcom_key, job.url)
        if self.deferrable and not self._killed:
            from airflow_provider_raydatallm.triggers.ray_job import RayJobTrigger

            # The triggerer may run on another machine, and must not start a Ray of its own there.
            job = replace(job, local_head=hook.local_head)
            trigger = RayJobTrigger(asdict(job), self.cancel_on_kill)
            kwargs = DeferredJob(job, slice_job).to_kwargs()
            self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs)
        stop = partial(self._stop, job, tracker.task)
        verdict = _run_async(self._unless_killed(wait_for_job(job, self.log), stop))
        return self._conclude(context, tracker, slice_job, job, verdict)

    async def _unless_killed(
        self, work: Coroutine[Any, Any, T], stop: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> T:
        """
        :param stop: called when the task is killed.
        """
        waiting = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        self._interrupt = lambda: loop.call_soon_threadsafe(waiting.cancel)
        if self._killed:
            waiting.cancel()  # the signal came while the job was being submitted
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._killed:
                raise
            if stop is not None:
                await stop()
            raise RayJobStoppedError("the task was killed") from None
        finally:
            self._interrupt = None

    async def _stop(self, job: JobRef, attempt: TaskAttempt) -> None:
        if not self.cancel_on_kill:
            self.log.info("Leaving Ray job %s running; the task's next try waits for it.", job.submission_id)
            return
        await stop_own_job(job, attempt, self.log, deferred=False, timeout_s=_STOP_SECONDS)

    def _conclude(
        self,
        context: Context,
        tracker: JobTracker,
        slice_job: SliceJob,
        ref: JobRef | None,
        verdict: job_verdict.Verdict,
    ) -> dict[str, Any]:
        """Turns a verdict into the task's result; replaces a job that was lost.

        :raises RayLLMInputError, RayLLMJobError, AirflowTaskTimeout: for a job without a result.
        """
        job_id = ref.submission_id if ref is not None else "?"
        if isinstance(verdict, job_verdict.TimedOut):
            raise AirflowTaskTimeout(f"execution_timeout {self.execution_timeout} has passed")
        if isinstance(verdict, job_verdict.ClusterUnreachable):
            raise error_of(verdict, job_id)
        if isinstance(verdict, job_verdict.EndedWithoutReport):
            self.log.warning("The job ended without a report; checking the store from the cluster")
            status_verdict = _run_async(wait_for_job(tracker.submit_status_job(slice_job), self.log))
            if isinstance(status_verdict, job_verdict.Finished):
                verdict = job_verdict.Finished(status_verdict.report)
        if isinstance(verdict, job_verdict.Finished):
            report = Report.model_validate(verdict.report)
            return self._succeed(context, tracker, slice_job, ref, report, verdict.started_at)
        cause = verdict.kind if isinstance(verdict, job_verdict.Failed) else verdict.why
        if cause in ("stopped", "unknown") and tracker.can_resubmit(stopped=cause == "stopped"):
            self.log.warning("The job was lost; submitting another one for the missing rows")
            return self._submit(context, tracker)
        tracker.mark_ended()
        raise error_of(verdict, job_id)

    def _succeed(
        self,
        context: Context,
        tracker: JobTracker,
        slice_job: SliceJob,
        ref: JobRef | None,
        report: Report,
        job_start: float | None = None,
    ) -> dict[str, Any]:
        task_start = context["ti"].start_date.timestamp()
        result = build_result(report, slice_job.paths, ref, task_start=task_start, job_start=job_start)
        tracker.conclude(result)
        for line in result_lines(report):
            self.log.info("%s", clean(line))
        return self._finish(context, slice_job, result)

    def _finish(self, context: Context, slice_job: SliceJob, result: dict[str, Any]) -> dict[str, Any]:
        self.record_run(slice_job, result=result)
        if result["outcome"] == "empty" and self.on_empty == "skip":
            raise AirflowSkipException(f"slice {slice_job.slice_key!r} has no rows")
        record_asset_events(
            self.outlets, context["outlet_events"], slice_job, result,
            partition_key=context.get("partition_key"), emit_partition=self.emit_partition,
        )  # fmt: skip
        return result

    def _build_submission(self, context: Context) -> JobSubmission:
        ti = context["ti"]
        job, user_packages = self.slice_job(context)
        ids = {n: str(getattr(ti, n)) for n in ("dag_id", "task_id", "run_id", "map_index", "try_number")}
        return JobSubmission(
            job=job,
            packages=user_packages,
            runtime_env=self.runtime_env,
            env_vars=submission.credentials_env(
                job,
                self.runtime_env,
                storage_conn_id=self.storage_conn_id,
                model_conn_id=self.model_conn_id,
                allow_static=self.allow_static_credentials,
                session_name=f"airflow-{self.dag_id[:27]}-{self.task_id[:28]}",
            ),
            metadata={**ids, "slice_key": job.slice_key},
        )

    def slice_job(self, context: Context) -> tuple[SliceJob, list[packages.Package]]:
        """Returns the run's spec and the packages of the user's code.

        :raises RayLLMInputError: naming the argument that cannot work.
        """
        dag, run = context["dag"], context["dag_run"]
        timezone = arguments.schedule_timezone(dag)
        key = resolve_slice_key(
            slice_key=self.slice_key,
            partition_key=context.get("partition_key"),
            param=chosen_slice(str(run.run_type), run.conf, context["params"], dag.params),
            data_interval_start=context.get("data_interval_start"),
            logical_date=context.get("logical_date"),
            partitioned=arguments.makes_partitioned_runs(dag.timetable),
            timezone=timezone,
            slice_format=self.slice_format,
        )
        arguments.check_code_arguments(self._code_arguments, self.engine_kwargs)
        user_packages = self._user_packages(Path(dag.fileloc).parent if dag.fileloc else None)
        scheduled = str(run.run_type) in ("scheduled", "backfill")
        run_fields = {
            "slice_key": key.key,
            "slice_instant": key.instant.isoformat() if key.instant is not None and scheduled else None,
            "slice_timezone": str(timezone),
            "code_hash": packages.code_hash(user_packages),
        }
        job = submission.build_spec(self.task_id, {**submission.spec_arguments(self), **run_fields})
        if self.engine_scope is None and job.can_share_engine and RayHook(self.ray_conn_id).is_local:
            job = job.model_copy(update={"engine_scope": "shared"})
        return job, user_packages

    def _user_packages(self, dag_folder: Path | None) -> list[packages.Package]:
        functions = [f for f in (self.preprocess, self.postprocess, self.engine) if f and ":" in f]
        return packages.user_packages(functions, self.code_paths, dag_folder)


#: Names of the arguments that are not Airflow's.
_OWN_ARGUMENTS = {
    name
    for name, p in inspect.signature(RayLLMBatchOperator.__init__).parameters.items()
    if p.kind is p.KEYWORD_ONLY
}


def _run_async(work: Coroutine[Any, Any, T]) -> T:
    async def run_and_close_clients() -> T:
        try:
            return await work
        finally:
            await close_clients()

    return asyncio.run(run_and_close_clients())
