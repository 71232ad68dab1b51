"""`RayLLMBatchOperator`: runs an LLM over one slice of a table on a Ray cluster and publishes Parquet.

Its arguments, and the slice and the job that they say. What then becomes of the job: `operators.slice_task`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf

from airflow_provider_raydatallm.clusters.base import Order
from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.clusters.derived import GpuNeeds, gpu_needs
from airflow_provider_raydatallm.contract.spec.engines import names_profile, with_profile
from airflow_provider_raydatallm.contract.spec.leaves import ARGUMENTS, COLLECTIONS, LEAVES
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.lineage.assets import check_emit_partition
from airflow_provider_raydatallm.operators.slice_task import SliceTask
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.task import arguments, submission
from airflow_provider_raydatallm.task.job.record import SERIES, try_series
from airflow_provider_raydatallm.task.job.waiter import JobRef
from airflow_provider_raydatallm.task.mapped_task import written_arguments
from airflow_provider_raydatallm.task.run_slice import other_names_of_run, slice_of_run
from airflow_provider_raydatallm.task.schedule import schedule_timezone, zone_name
from airflow_provider_raydatallm.task.slice_key import SCHEDULED_RUNS
from airflow_provider_raydatallm.task.telemetry import trace_context

if TYPE_CHECKING:
    import pydantic
    from airflow.sdk import DAG, Context, XComArg

    from airflow_provider_raydatallm.contract.spec.hold import Hold
    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
    from airflow_provider_raydatallm.operators.groups import (
        Adapter,
        Audio,
        Embedding,
        Engine,
        Images,
        Labels,
        Later,
        Limits,
        Path,
        Publish,
        Quality,
        Rerun,
        Source,
        Text,
    )

#: Airflow's own arguments. One is named like a leaf: `queue`.
_OF_ALL_TASKS = frozenset(inspect.signature(BaseOperator.__init__).parameters)


class RayLLMBatchOperator(SliceTask):
    """Run an LLM over one slice of a table on a Ray cluster and publish the answers as Parquet.

    The slice key is the first of: `slice_key`; the run's partition key; the Param `slice`, if a person's run
    sets it; the data interval's start; the logical date (dates are formatted by `source.slice_format` in the
    schedule's timezone). The output has all input columns, in input order, and the answer. The slice's folder
    holds Parquet files and an empty `_SUCCESS`; metadata and quarantined rows lie beside the table.

    A slice already published with the same configuration and unchanged input is left alone: no engine starts.
    A task that fails publishes nothing and leaves the published version in place.

    Five arguments are enough to start: the paths, the model, the prompt, and `choices` or `output_schema`.
    What is seldom set stands in groups: plain dicts, described in `operators.groups`. Texts call their leaves
    `limits.queue` and the like.

    Nearly all arguments are templates (`template_fields`), leaf by leaf; text such as "true", "0.12" and
    "30m" becomes what the argument needs. Code is not (functions, classes, `runtime_env`, vLLM's
    `trust_remote_code`): whoever may trigger a run cannot choose it. Invalid arguments fail when the DAG is
    parsed, templated ones when they are rendered, and what only the data or the cluster shows (a missing
    column, too few GPUs) fails before an engine starts. None of these is retried. Ray shows a job's
    environment to holders of the cluster's token.

    :param input_path: file, folder, glob or dataset root, of files in one of the formats of `source.format`;
        `{slice}` stands for the slice key.
    :param output_path: root of the published table. Without `{slice}`, the slice goes to
        `<output_path>/ds=<slice key>/`.
    :param model_source: hub id, folder on every node, or `s3://` address; of an endpoint, its name there.
    :param adapter: LoRA adapter on top of the model, for engine `vllm`: its folder, or the group `Adapter`,
        also for one of several in each row.
    :param task: `generate` a text; `classify` the row's text by the labels that the model was trained for;
        `embed` it: publish its vector, a list of floats; `score` it against `query`, by a reranker; or
        `transcribe` a recording, by Whisper.
    :param prompt: user message, or the row's text; `{column}` is replaced by the row's value, other braces
        stay. Wrap prompts with double braces in `airflow.sdk.literal`. A name that ends in `.jinja` is a file
        beside the DAG. To `transcribe`, it may be left out, or be what was said before, such as names.
    :param query: what the texts of `task="score"` are compared with, with `{column}` fields as in `prompt`.
    :param messages: column of conversations to continue, instead of `prompt`: lists of structs with `role`
        and `content`, or JSON text of such lists.
    :param system_prompt: system message, with `{column}` fields as in `prompt`.
    :param choices: the answer is one of these texts, the most probable one by default.
    :param labels: how it is found, whether a row may have several, and columns that say how sure the model
        is: the group `Labels`.
    :param embedding: type and size of the vectors of `task="embed"`: the group `Embedding`.
    :param images: the column with the images that the model sees before the prompt, or the group `Images`.
    :param audio: the column with the recordings of `task="transcribe"`, or the group `Audio`.
    :param output_schema: the answer is JSON of this schema: a pydantic model class or a JSON schema.
        Published as a struct when the schema fixes every field, else as JSON text. Rows with an invalid
        answer (cut at max_tokens, or with a key that the struct lacks) go to quarantine. `$ref` may point
        into the schema only.
    :param output_mode: how its answers are published: `struct` (JSON text, where the schema leaves fields
        open), `columns`: one for each of its properties, or `json`: the text as the model wrote it.
    :param regex: the answer matches this expression.
    :param grammar: the answer follows this grammar (EBNF).
    :param output_column: name of the answer's column; must not exist in the input.
    :param columns: input columns to keep in the output. Default: all.
    :param sampling_params: vLLM's sampling parameters. A value that is exactly `"{column}"` comes from the
        row. With `n` over 1, answers are lists.
    :param chat_template: a Jinja template in place of the model's own: its text, which Airflow does not
        render.
    :param chat_template_kwargs: arguments of the chat template, such as `{"enable_thinking": False}`.
    :param tools: functions that the model may ask to be called, as OpenAI describes them. The chat template
        tells the model; what it answers is published as it is.
    :param reasoning_parser: vLLM's parser, such as `qwen3` or `deepseek_r1`, that tells what a model thinks
        from its answer: it goes to a column of its own, `<output_column>_reasoning`. `sampling_params` may
        limit it by `thinking_token_budget`.
    :param logprobs: publish how probable the model finds its answer: the logarithm, and its tokens
        (`<output_column>_logprob`, `<output_column>_logprob_tokens`).
    :param slice_key: names the slice.
    :param preprocess: `"package.module:function"` that turns a row (dict) into a prompt, or a dict with
        `prompt` or `messages` and optionally `sampling_params`. Replaces `prompt`.
    :param postprocess: `"package.module:function"` that turns a row (dict of the request's columns and the
        answer) into a dict of columns to publish. Its return annotation (a TypedDict, dataclass or pydantic
        model) decides the columns' types, else the first answers do; other types go to quarantine.
    :param code_paths: folders or .py files of that code, sent with the job. Default: the functions' package.
    :param engine: what answers: a profile of the connection, such as `"l4-small"`; `"auto"`, `"vllm"` or
        `"ray_data_llm"`; `"package.module:Class"` of your own; or the group `Engine`, also for an endpoint.
    :param source: how the input is read: the group `Source`.
    :param rerun: what happens to a slice that is published already: `"keep"` (fail when the configuration or
        the input is another), `"recompute"`, `"extend"` (add new input files), or the group `Rerun`.
    :param quality: rows that fail for their own reasons: the group `Quality`.
    :param publish: files, versions and folders of the table: the group `Publish`.
    :param limits: how long things may take: the group `Limits`.
    :param runtime_env: Ray runtime environment of the job, without secrets; the provider adds its modules.
    :param cluster: a Ray cluster that KubeRay makes for the task, such as `{"template": "l4.yaml"}` or
        `{"image": ...}`; the host of `ray_conn_id` is `kuberay` then. Default: the connection's.
    :param ray_conn_id: connection of type `ray`; host `local` means an embedded Ray on this machine.
    :param model_conn_id: connection (of type huggingface, http or generic) whose password is the model hub's
        access token, which the job gets as HF_TOKEN; or the key of the endpoint at its host.
    :param storage_conn_id: AWS connection from which the job gets session credentials for `s3://` addresses.
        Default: the identity of the cluster's nodes.
    :param allow_static_credentials: send the keys of `storage_conn_id` as they are, for stores without STS.
        They stay valid until they are replaced.
    :param deferrable: wait in the triggerer, so that the task uses no worker while the job runs. Default:
        `[operators] default_deferrable`.
    :param poll_interval: seconds between two status checks of the job; at least 1.
    :param cancel_on_kill: stop the job when the task is cleared, marked, deleted, terminated or timed out.
        Finished rows are kept. If False, the job runs on, and publishes, and the task's next try waits for
        it.
    :param emit_partition: set the slice key as partition on the events of `outlets` when the run has no
        partition key.
    :param log: what the task's log shows of the job's: `brief`, the provider's own lines, with the cause when
        the job fails; or `full`, also all that Ray, vLLM and your code print.
    """

    template_fields: Sequence[str] = (
        *(name for name in ARGUMENTS if name not in LEAVES or LEAVES[name].declared.is_template),
        "slice_key", "ray_conn_id", "model_conn_id", "storage_conn_id",
    )  # fmt: skip
    template_ext: Sequence[str] = arguments.TEMPLATE_FILES
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "prompt": "md",
        "system_prompt": "md",
        **{n: "json" for n in ARGUMENTS if n in GROUPS or n in COLLECTIONS},
    }
    ui_color = "#d6ecff"

    def __init__(
        self,
        *,
        input_path: Path,
        output_path: Path,
        model_source: Later,
        adapter: Path | Adapter | XComArg | None = None,
        task: Literal["generate", "classify", "embed", "score", "transcribe"] | Later = "generate",
        prompt: Text | None = None,
        query: Text | None = None,
        messages: Later | None = None,
        system_prompt: Text | None = None,
        choices: Sequence[str] | XComArg | None = None,
        labels: Labels | XComArg | None = None,
        embedding: Embedding | XComArg | None = None,
        images: Images | Later | None = None,
        audio: Audio | Later | None = None,
        output_schema: type[pydantic.BaseModel] | dict[str, Any] | None = None,
        output_mode: Literal["columns", "struct", "json"] | Later = "struct",
        regex: Text | None = None,
        grammar: Text | None = None,
        output_column: Later = "answer",
        columns: Sequence[str] | XComArg | None = None,
        sampling_params: Mapping[str, Any] | XComArg | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | XComArg | None = None,
        tools: Sequence[Mapping[str, Any]] | XComArg | None = None,
        reasoning_parser: Later | None = None,
        logprobs: bool | Later = False,
        slice_key: Later | None = None,
        preprocess: str | None = None,
        postprocess: str | None = None,
        code_paths: Sequence[str] | None = None,
        engine: str | Engine | XComArg = "auto",
        source: Source | XComArg | None = None,
        rerun: str | Rerun | XComArg = "keep",
        quality: Quality | XComArg | None = None,
        publish: Publish | XComArg | None = None,
        limits: Limits | XComArg | None = None,
        runtime_env: dict[str, Any] | None = None,
        cluster: Mapping[str, Any] | None = None,
        ray_conn_id: str = RayHook.default_conn_name,
        model_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        allow_static_credentials: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 5.0,
        cancel_on_kill: bool = True,
        emit_partition: bool = False,
        log: Literal["brief", "full"] = "brief",
        **kwargs: Any,
    ) -> None:
        arguments.check_not_moved(kwargs.keys() - _OF_ALL_TASKS)
        super().__init__(**kwargs)
        self.input_path = arguments.to_url(input_path)
        self.output_path = arguments.to_url(output_path)
        self.model_source, self.task = model_source, task
        self.adapter = arguments.to_url(adapter)
        self.prompt, self.query, self.messages = prompt, query, messages
        self.system_prompt = system_prompt
        self.embedding, self.images, self.audio = embedding, images, audio
        self.choices, self.labels, self.regex, self.grammar = choices, labels, regex, grammar
        self.output_schema = arguments.to_json_schema(output_schema)
        self.output_mode, self.output_column, self.columns = output_mode, output_column, columns
        self.sampling_params, self.chat_template_kwargs = sampling_params, chat_template_kwargs
        self.chat_template, self.tools = chat_template, tools
        self.reasoning_parser, self.logprobs = reasoning_parser, logprobs
        self.slice_key = slice_key
        self.preprocess, self.postprocess, self.code_paths = preprocess, postprocess, code_paths
        self.engine, self.source, self.rerun = engine, source, rerun
        self.quality, self.publish, self.limits = quality, publish, limits
        self.runtime_env, self.allow_static_credentials = runtime_env, allow_static_credentials
        self.cluster, self.ray_conn_id, self.model_conn_id = cluster, ray_conn_id, model_conn_id
        self.storage_conn_id = storage_conn_id
        self.deferrable, self.cancel_on_kill, self.emit_partition = deferrable, cancel_on_kill, emit_partition
        self.poll_interval = arguments.parse_seconds("poll_interval", poll_interval, min_s=1)
        if self.execution_timeout is not None:
            arguments.parse_seconds("execution_timeout", self.execution_timeout, min_s=1)
        check_emit_partition(self.outlets, emit_partition)
        arguments.check_values(log, ray_conn_id)
        self.job_log = log
        #: Why the templates could not be rendered; raised where a job would be built from them.
        self._render_error: Exception | None = None
        arguments.check_bools(
            self, "allow_static_credentials", "deferrable", "cancel_on_kill", "emit_partition"
        )
        arguments.check_list("code_paths", code_paths)
        arguments.check_not_templates(vars(self), _NO_TEMPLATES)
        #: Those that decide which code runs, before anything is rendered.
        self._code = arguments.code_arguments(vars(self))
        submission.check_arguments(self.task_id, submission.job_arguments(self), runtime_env)
        if cluster is not None and self.get_dag() is not None:  # whose folder has the file
            try:
                self._blueprint(GpuNeeds())  # what its engine needs is known once it is rendered
            except ValueError as e:
                raise RayLLMInputError(f"{self.task_id}: {e}") from None

    @classmethod
    def check_written(cls, task_id: str, written: Mapping[str, Any]) -> None:
        try:
            arguments.check_not_templates(written, _NO_TEMPLATES)
            arguments.code_arguments(written)
            submission.check_secrets(written)
        except ValueError as e:
            raise RayLLMInputError(f"{task_id}: {e}") from None

    def _do_render_template_fields(self, *args: Any, **kwargs: Any) -> None:
        # A resume renders them again, and needs none of them: a Variable may be gone by now. Of a mapped task
        # Airflow calls this, and not `render_template_fields`.
        try:
            super()._do_render_template_fields(*args, **kwargs)
        except Exception as e:
            self._render_error = e

    def _wait_options(self, context: Context) -> JobRef:
        if self._render_error is not None:
            raise self._render_error
        limits = self._wait_limits
        deadline = None
        if self.deferrable and self.execution_timeout is not None:
            # Airflow enforces it only while the task has a worker, and starts anew each time it gets one.
            deadline = (context["ti"].start_date + self.execution_timeout).timestamp()
        return JobRef(
            self.ray_conn_id, self.poll_interval, limits.reconnect_s, limits.orphan_s,
            deadline=deadline, since=time.time(), log=self.job_log,
        )  # fmt: skip

    @property
    def _wait_limits(self) -> arguments.WaitLimits:
        """:raises RayLLMInputError: naming the limit that cannot work, as rendered."""
        try:
            return submission.wait_limits(self.limits)
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None

    def _order(self) -> Order | None:
        if self.cluster is None:
            return None
        try:
            engine = self._with_profile()
            needs = gpu_needs(engine if isinstance(engine, Mapping) else {"kind": engine})
            blueprint = self._blueprint(needs)
            return Order(blueprint, submission.queue_seconds(self.limits))
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None

    def _blueprint(self, needs: GpuNeeds) -> Blueprint:
        """
        :param needs: of the engine.
        :raises ValueError: naming the leaf of `cluster` that cannot work.
        """
        fileloc = getattr(self.get_dag(), "fileloc", None)
        folder = LocalPath(fileloc).parent if fileloc else None
        return Blueprint.parse(self.cluster, folder, needs)

    @property
    def _hold(self) -> Hold:
        try:
            return submission.hold_of(self.quality)
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None

    def _build_submission(self, context: Context) -> JobSubmission:
        ti = context["ti"]
        job, user_packages = self.slice_job(context)
        ids = {n: str(getattr(ti, n)) for n in ("dag_id", "task_id", "run_id", "map_index", "try_number")}
        ids["dag_version_id"] = str(getattr(ti, "dag_version_id", None) or "")
        ids["run_start"] = str(context["dag_run"].start_date or "")
        ids[SERIES] = try_series(ti, context["dag_run"])
        self._submission = JobSubmission(
            job=job,
            packages=user_packages,
            runtime_env=self.runtime_env,
            lend_credentials=cache(
                partial(
                    submission.credentials_env,
                    job,
                    self.runtime_env,
                    storage_conn_id=self.storage_conn_id,
                    model_conn_id=self.model_conn_id,
                    allow_static=self.allow_static_credentials,
                    session_name=f"airflow-{self.dag_id[:27]}-{self.task_id[:28]}",
                )
            ),
            metadata={**ids, **trace_context(), "slice_key": job.slice_key},
            finish_by=self._finish_time(context),
        )
        has_scope = "scope" in job.engine.model_fields_set
        if has_scope or not job.can_share_engine or not RayHook(self.ray_conn_id).keeps_engines:
            return self._submission
        return replace(self._submission, job=job.changed(engine={"scope": "shared"}))

    def _finish_time(self, context: Context) -> float | None:
        if (finish_by := self._wait_limits.finish_by) is None:
            return None
        run_start = context["dag_run"].start_date or datetime.now(UTC)
        timezone = partial(schedule_timezone, context["dag"])
        return arguments.finish_time(finish_by, run_start, timezone).timestamp()

    def slice_job(self, context: Context) -> tuple[SliceJob, list[packages.Package]]:
        """Returns the run's spec and the packages of the user's code.

        :raises RayLLMInputError: naming the argument that cannot work.
        :raises Exception: of a template that could not be rendered.
        """
        if self._render_error is not None:
            raise self._render_error
        dag = context["dag"]
        try:
            engine = self._engine(dag)
            # Before the fields: it names the decorated function as the cluster knows it.
            user_packages = self._user_packages(LocalPath(dag.fileloc).parent if dag.fileloc else None)
            fields = submission.spec_fields({**submission.job_arguments(self), "engine": engine})
            submission.hold_of(self.quality)  # before a row is paid
            submission.check_that_a_gate_holds(self.quality)
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None
        run_fields = {**self._slice_fields(context, fields), "code_hash": packages.code_hash(user_packages)}
        job = submission.build_spec(self.task_id, {**fields, **run_fields})
        submission.check_rows_differ(self.task_id, job)
        return job, [*user_packages, *self._packages_of_checks(dag, job, user_packages)]

    def _packages_of_checks(
        self, dag: DAG, job: SliceJob, others: list[packages.Package]
    ) -> list[packages.Package]:
        """Returns what only the checks of gates need: it changes no answer, and so no `code_hash`."""
        try:
            arguments.check_checks(self._written_code(dag), job.quality.functions)
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None
        if self.code_paths is not None:
            return []
        return [p for p in packages.user_packages(job.quality.functions, None, None) if p not in others]

    def _slice_fields(self, context: Context, fields: Mapping[str, Any]) -> dict[str, Any]:
        slice_format = fields.get("source", {}).get("slice_format")
        key = slice_of_run(context, cast("str | None", self.slice_key), slice_format)
        slice_fields: dict[str, Any] = {"slice_key": key.key}
        if key.instant is not None and context["dag_run"].run_type in SCHEDULED_RUNS:
            slice_fields["slice_instant"] = key.instant.astimezone(UTC).isoformat()
            slice_fields["other_slice_keys"] = other_names_of_run(context, key, slice_format)
        try:
            slice_fields["slice_timezone"] = zone_name(schedule_timezone(context["dag"]))
        except RayLLMInputError:
            if fields.get("source", {}).get("column") is not None:  # whose dates are formatted in it
                raise
        return slice_fields

    def _engine(self, dag: DAG) -> Any:
        """Returns the engine with its profile's leaves.

        :raises RayLLMInputError: when there is no such profile, or a run would decide which code runs.
        """
        engine = self._with_profile()
        arguments.check_code_arguments(self._written_code(dag), {**vars(self), "engine": engine})
        return engine

    def _with_profile(self) -> Any:
        if names_profile(self.engine):
            return with_profile(self.engine, RayHook(self.ray_conn_id).engine_profiles)
        return self.engine

    def _written_code(self, dag: DAG) -> dict[str, Any]:
        """Returns the arguments that decide which code runs, as they stand in the DAG."""
        task: Any = dag.task_dict.get(self.task_id)
        if not hasattr(task, "partial_kwargs"):
            return self._code
        return arguments.code_arguments(written_arguments(task))

    def _user_packages(self, dag_folder: LocalPath | None) -> list[packages.Package]:
        functions = [*filter(None, [self.preprocess]), *self._postprocess_and_engine]
        return packages.user_packages(functions, self.code_paths, dag_folder)

    @property
    def _postprocess_and_engine(self) -> list[str]:
        """References to the code of both, where they are the user's."""
        engine = self.engine.get("kind") if isinstance(self.engine, Mapping) else self.engine
        return [str(f) for f in (self.postprocess, engine) if f and ":" in str(f)]


#: Names of the arguments, other than Airflow's, that are no templates, and hold none: a schema's patterns may
#: have braces of their own, and a chat template is full of them.
_NO_TEMPLATES = {
    name
    for name, p in inspect.signature(RayLLMBatchOperator.__init__).parameters.items()
    if p.kind is p.KEYWORD_ONLY
} - {*RayLLMBatchOperator.template_fields, "output_schema", "chat_template"}
