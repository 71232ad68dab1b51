"""`SliceJob`, the contract from Airflow to Ray: what to do. `result.report` is the way back.

* People write it as the operator's arguments, and so is its JSON: the task's own arguments stand beside the
  job's, all others in groups. Inside, they are nested: `job.task` and `job.engine` are of a kind, each with
  arguments of its own (`dialect`).
* Unknown arguments and invalid values fail before anything is submitted.
* A spec holds no secrets: it is shipped to the cluster, stored and shown.

DAG files import this module, so it imports only pydantic and the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from airflow_provider_raydatallm.contract.addresses import (
    ancestors,
    canonical,
    check_address,
    check_fields,
    check_name_lengths,
    holds,
)
from airflow_provider_raydatallm.contract.base import Contract, Group, Texts
from airflow_provider_raydatallm.contract.log.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress, SlicePaths, encode_slice_key
from airflow_provider_raydatallm.contract.spec.dialect import nested, written
from airflow_provider_raydatallm.contract.spec.engines import AUTO, KINDS, AnyEngine
from airflow_provider_raydatallm.contract.spec.field import (
    Affects,
    Spec,
    affected,
    declaration,
    leaf,
    leaves_of,
    models_of,
)
from airflow_provider_raydatallm.contract.spec.gate import PROBES
from airflow_provider_raydatallm.contract.spec.limits import Limits
from airflow_provider_raydatallm.contract.spec.publish import Publish
from airflow_provider_raydatallm.contract.spec.quality import Quality
from airflow_provider_raydatallm.contract.spec.rerun import Rerun
from airflow_provider_raydatallm.contract.spec.source import Source, rows_if_filtered
from airflow_provider_raydatallm.contract.spec.tasks import TASKS, AnyTask
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate

#: Labels that an error names.
_MOST_SHOWN = 10
_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_Kind = TypeVar("_Kind", bound=Group)

#: Fields that a run sets.
RUN_FIELDS = frozenset({
    "version", "slice_key", "slice_instant", "other_slice_keys", "slice_timezone", "code_hash",
})  # fmt: skip


def _check_function(value: str) -> str:
    if not _FUNCTION.match(value):
        raise ValueError(f"{value!r} is not of the form 'package.module:function'")
    return value


_Function = Annotated[str, AfterValidator(_check_function)]


def _request_if_code_runs(job: Spec) -> Affects:
    runs = job.preprocess is not None or job.postprocess is not None or job.engine.is_users_code
    return Affects.REQUEST if runs else Affects.NOTHING


class SliceJob(Contract):
    """Everything the Ray side needs to run one slice. The reference page explains each argument to users."""

    version: Literal[1] = leaf(1, affects=Affects.NOTHING, doc="of the spec's form")

    # The slice, which the operator finds out.
    #: As a folder's name it may stand beside the provider's own, and readers skip those that begin so.
    slice_key: str = leaf(affects=Affects.INPUT, doc="names the slice.", min_length=1, pattern=r"^[^_.]")
    slice_instant: str | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="the instant that the key was formatted from, in ISO's form: of a scheduled run",
    )
    other_slice_keys: tuple[str, ...] = leaf(
        (),
        affects=Affects.NOTHING,
        doc="the keys that it has in other timezones, in which another version of Airflow may have "
        "formatted it",
    )
    slice_timezone: str = leaf(
        "UTC", affects=rows_if_filtered, doc="in which dates are formatted: the schedule's"
    )
    code_hash: str = leaf(
        "", affects=_request_if_code_runs, doc="of the functions' code that travels with the job"
    )

    input_path: str = leaf(
        affects=Affects.INPUT,
        doc="file, folder, glob or dataset root, of files in one of the formats of `source.format`; "
        "`{slice}` stands for the slice key.",
        min_length=1,
        address=True,
        stand_in="x",
    )
    output_path: str = leaf(
        affects=Affects.NOTHING,
        doc="root of the published table. Without `{slice}`, the slice goes to `<output_path>/ds=<slice "
        "key>/`.",
        min_length=1,
        address=True,
        stand_in="x",
    )
    model_source: str = leaf(
        affects=Affects.ANSWERS,
        doc="hub id, folder on every node, or `s3://` address; of an endpoint, its name there.",
        min_length=1,
        secret=True,
        stand_in="x",
    )
    task: AnyTask
    output_column: str = leaf(
        "answer",
        affects=Affects.REQUEST,
        doc="name of the answer's column; must not exist in the input.",
        min_length=1,
    )
    columns: Texts | None = leaf(
        None, affects=Affects.PUBLISHED, doc="input columns to keep in the output. Default: all."
    )
    preprocess: _Function | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc='`"package.module:function"` that turns a row (dict) into a prompt, or a dict with `prompt` or '
        "`messages` and optionally `sampling_params`. Replaces `prompt`.",
        template=False,
    )
    postprocess: _Function | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc='`"package.module:function"` that turns a row (dict of the request\'s columns and the answer) '
        "into a dict of columns to publish. Its return annotation (a TypedDict, dataclass or pydantic "
        "model) decides the columns' types, else the first answers do; other types go to quarantine.",
        template=False,
    )
    engine: AnyEngine
    source: Source = Source()
    rerun: Rerun = Rerun()
    quality: Quality = Quality()
    publish: Publish = Publish()
    limits: Limits = Limits()

    @model_validator(mode="before")
    @classmethod
    def _from_written(cls, value: Any) -> Any:
        return nested(value, GROUPS) if isinstance(value, Mapping) else value

    @model_serializer(mode="wrap")
    def _to_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return written(handler(self))

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError(f"columns must be different names, at least one, got {list(value)!r}")
        return value

    @field_validator("input_path", "output_path")
    @classmethod
    def _check_address(cls, value: str, info: Any) -> str:
        check_fields(str(info.field_name), value)
        return check_address(value)

    @field_validator("output_column")
    @classmethod
    def _check_output_column(cls, value: str) -> str:
        if value.startswith("__"):
            raise ValueError(f"{value!r}: names that begin with __ are reserved; choose another")
        return value

    @model_validator(mode="after")
    def _check_no_secrets(self) -> SliceJob:
        for path, value, _, declared in leaves_of(self):
            if declared.may_hold_secret:
                check_no_secrets(path, value.model_dump() if isinstance(value, BaseModel) else value)
        return self

    @model_validator(mode="after")
    def _check_request(self) -> SliceJob:
        task = self.task
        for name in ("preprocess", "postprocess"):
            if getattr(self, name) is not None and name not in task.functions:
                kinds = [kind for kind, model in TASKS.items() if name in model.functions]
                raise ValueError(
                    f"{name} is for task={' or '.join(map(repr, kinds))}, and task is {task.kind!r}: leave "
                    "one of them out"
                )
        arguments = {**task.request_arguments, "preprocess": self.preprocess}
        given = [n for n in ("prompt", "messages", "preprocess") if arguments.get(n) is not None]
        if not given and task.needs_prompt:
            raise ValueError(
                "prompt is missing: give a prompt with {column} fields, messages (a column of conversations) "
                "or a preprocess function"
            )
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both build the request: give one of them")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> SliceJob:
        engine, task = self.engine, self.task
        can = engine.capabilities
        if can.tasks is not None and task.kind not in can.tasks:
            kinds = [kind for kind, model in KINDS.items() if task.kind in (model.capabilities.tasks or ())]
            raise ValueError(
                f"task={task.kind!r} is for engine {' or '.join(map(repr, kinds))}, and this slice's is "
                f"{engine.kind!r}"
            )
        given = task.given(self)
        if self.quality.on_too_long != "quarantine":
            given.add("quality.on_too_long")
        for name in sorted(given - can.follows):
            kinds = [kind for kind, model in KINDS.items() if name in model.capabilities.follows]
            raise ValueError(
                f"{name} is for engine {' or '.join(map(repr, kinds))}, and this slice's is {engine.kind!r}: "
                f"{engine.instead.get(name, 'leave it out')}"
            )
        self._check_on_too_long()
        self._check_costs()
        engine.check(self)
        task.check(self)
        if engine.is_shared and (reason := self._own_engine_reason):
            raise ValueError(f"engine.scope='shared' is not possible: {reason}")
        return self

    def _check_costs(self) -> None:
        """A limit of a cost that is never known would let all slices pass."""
        gates = [gate for gate in self.quality.gates if gate.is_of_costs]
        limits = [f"quality.gates has a gate of {gate.of!r}" for gate in gates]
        if self.limits.max_cost is not None:
            limits.insert(0, f"limits.max_cost is {self.limits.max_cost:g}")
        if not limits or self.engine.gpu_price is not None:
            return
        if "gpu_hour_price" in type(self.engine).model_fields:
            raise ValueError(
                f"{limits[0]}, and what a GPU costs is not known: set engine.gpu_hour_price, also in an "
                "engine profile of the connection, or [ray_llm] gpu_hour_price in Airflow's configuration"
            )
        raise ValueError(
            f"{limits[0]}, and engine {self.engine.kind!r} holds no GPUs of the cluster: leave it out"
        )

    def _check_on_too_long(self) -> None:
        policy, media = self.quality.on_too_long, self.task.media
        if policy == "chunk" and not self.task.answers_vectors:
            raise ValueError(
                f"quality.on_too_long='chunk' is for task='embed', and task is {self.task.kind!r}: use "
                "'truncate' or 'raise_limit'"
            )
        if policy != "quarantine" and media is not None:
            raise ValueError(
                f"quality.on_too_long={policy!r} counts a prompt's tokens, and those of {media.noun}s are "
                "not known before the engine sees them: leave it out"
            )

    @model_validator(mode="after")
    def _check_answers(self) -> SliceJob:
        quality, task = self.quality, self.task
        if quality.repair and not task.draws:
            raise ValueError(
                f"quality.repair is for task='generate', and task is {task.kind!r}: leave one of them out"
            )
        if quality.repair and task.answers_per_row > 1:
            raise ValueError(
                f"quality.repair goes on with a row's answer, and sampling_params['n'] asks for "
                f"{task.answers_per_row}: leave one of them out"
            )
        limits = {"repair": quality.repair > 0, "max_invalid": quality.max_invalid is not None}
        if (given := [name for name, is_given in limits.items() if is_given]) and not task.shapes:
            raise ValueError(
                f"quality.{given[0]} is for answers that lack their shape, and these have none: give "
                "choices, output_schema, regex or grammar, or leave it out"
            )
        reads = {"golden": quality.golden is not None, "judge": quality.judge is not None}
        if (given := [name for name, is_given in reads.items() if is_given]) and task.answers_vectors:
            raise ValueError(
                f"quality.{given[0]} says whether answers are right, and task={task.kind!r} answers with "
                "vectors: leave it out"
            )
        has_kwargs = quality.judge is not None and bool(quality.judge.kwargs)
        if has_kwargs and "kwargs" not in type(self.engine).model_fields:
            raise ValueError(
                "quality.judge has kwargs, which are vLLM's engine arguments, and engine "
                f"{self.engine.kind!r} takes none: leave them out"
            )
        if self.splits_answers and self.output_column != "answer":
            raise ValueError(
                f"output_column is {self.output_column!r}, and with output_mode='columns' the columns have "
                "the names of output_schema's properties: leave output_column out"
            )
        return self

    @model_validator(mode="after")
    def _check_gates(self) -> SliceJob:
        """A gate of labels that no answer can be would let all slices pass."""
        labels = self.task.labels_of_answers
        for gate in self.quality.gates:
            if gate.is_of_labels and not self.task.has_labels:
                raise ValueError(
                    f"quality.gates has a gate of {gate.of!r}, and these answers are no labels: give "
                    "choices, or leave it out"
                )
            if gate.of in PROBES and getattr(self.quality, gate.of) is None:
                raise ValueError(
                    f"quality.gates has a gate of {gate.of!r}, and there are no such rows: give "
                    f"quality.{gate.of}, or leave the gate out"
                )
            if gate.of == "confidence" and not self.task.has_confidence:
                raise ValueError(
                    "quality.gates has a gate of 'confidence', and no label has one: give "
                    "labels={'confidence': True}, with one label a row"
                )
            if labels is not None and gate.label is not None and gate.label not in labels:
                raise ValueError(
                    f"quality.gates has a gate of {gate.of!r}, and choices has no {gate.label!r}, but "
                    f"{', '.join(map(repr, labels[:_MOST_SHOWN]))}"
                )
        return self

    @model_validator(mode="after")
    def _check_folders(self) -> SliceJob:
        """Where the slice runs, links are followed, too, and other tables looked for (`store.ownership`)."""
        table = self.output_table
        for folder in vars(self.paths).values():
            check_name_lengths(folder)
        for name in ("metadata_path", "quarantine_path"):
            label, folder = f"publish.{name}", getattr(self.publish, name)
            if folder is None:
                continue
            if self.has_tables_for_slices:
                raise ValueError(
                    f"{label} holds folders named like the slices', and output_path {self.output_path!r} has "
                    "{slice} above its last folder: leave it out, or put {slice} into the last folder only"
                )
            if name == "quarantine_path" and len(list(ancestors(canonical(folder)))) == 1:
                raise ValueError(
                    f"{label} {folder!r} is the root of a bucket or disk, and there is no place beside it "
                    "for what says whose it is: give a folder in it"
                )
            if holds(canonical(table), canonical(folder)):
                raise ValueError(
                    f"{label} {folder!r} lies inside the table {table}/, whose readers would meet it there: "
                    "give a folder outside"
                )
        return self

    def task_as(self, kind: type[_Kind]) -> _Kind:
        """Returns the task, for code that only one kind reaches.

        :raises TypeError: when it is of another.
        """
        return _as(self.task, kind)

    def engine_as(self, kind: type[_Kind]) -> _Kind:
        """As `task_as`, for engines."""
        return _as(self.engine, kind)

    def changed(self, **groups: Mapping[str, Any]) -> SliceJob:
        """Returns the job with other leaves, which are not checked: `changed(limits={"queue": 1.0})`."""
        return self.model_copy(
            update={name: getattr(self, name).model_copy(update=leaves) for name, leaves in groups.items()}
        )

    @property
    def row_rule(self) -> dict[str, Any]:
        """What decides, beside the files themselves, which rows are the slice's and how they read.

        Unit ids and the fingerprint cover it: rows that were planned by another rule are other rows. Types
        of columns are not in it: unit ids cover those that a file's columns really have.
        """
        return affected(self, Affects.ROWS)

    @property
    def splits_answers(self) -> bool:
        """Whether each property of an answer is a column."""
        return isinstance(self.task, Generate) and self.task.output_mode == "columns"

    @property
    def compares_labels(self) -> bool:
        """Whether the engine asks how probable each of the choices is, in a token, and has none written."""
        task = self.task
        is_labels = isinstance(task, Generate) and task.choices is not None
        return isinstance(task, Generate) and is_labels and task.writes_labels_reason(self) is None

    @property
    def draws_nothing(self) -> bool:
        """Whether equal requests have equal answers, whatever the sampling parameters."""
        return self.compares_labels or not self.task.draws

    @property
    def runs_user_code(self) -> bool:
        """Whether code of users runs around the engine."""
        functions = self.preprocess is not None or self.postprocess is not None or self.quality.functions
        return (
            bool(functions)
            or self.engine.is_users_code
            or bool(self.engine.arguments.get("trust_remote_code"))
        )

    @property
    def can_share_engine(self) -> bool:
        return self._own_engine_reason is None

    @property
    def _own_engine_reason(self) -> str | None:
        if self.task.lora:
            return "adapters are loaded by an engine of the slice's own"
        if not self.engine.capabilities.shares:
            kinds = [kind for kind, model in KINDS.items() if model.capabilities.shares]
            return (
                f"it is for engine {' or '.join(map(repr, kinds))}, and this slice's is {self.engine.kind!r}"
            )
        if self.quality.on_too_long == "raise_limit":
            return "quality.on_too_long='raise_limit' starts engines with limits of the slice's own"
        if self.engine.arguments.get("max_model_len") == AUTO:
            return "max_model_len='auto' depends on the rows of one slice: give a number of tokens"
        return None

    @property
    def address(self) -> SliceAddress:
        return SliceAddress(
            self.output_path,
            self.slice_key,
            self.publish.metadata_path,
            self.publish.quarantine_path,
            self.trial_name,
        )

    @property
    def slice_path(self) -> str:
        """Folder of the published slice."""
        return self.address.slice_path

    @property
    def trial_name(self) -> str | None:
        """Name of the trial's table; None for a whole slice."""
        rows = self.source.max_rows
        return None if rows is None else self.source.trial or f"first-{rows}"

    @property
    def output_table(self) -> str:
        return self.address.output_table

    @property
    def paths(self) -> SlicePaths:
        return self.address.paths

    @property
    def has_tables_for_slices(self) -> bool:
        return self.address.has_tables_for_slices

    @property
    def table_paths(self) -> SlicePaths:
        return self.address.table_paths

    @property
    def resolved_input_path(self) -> str:
        return self._of_slice(self.input_path)

    @property
    def golden_path(self) -> str | None:
        """Where the golden rows are."""
        golden = self.quality.golden
        return self._of_slice(golden.path) if golden is not None else None

    def _of_slice(self, address: str) -> str:
        return address.replace("{slice}", encode_slice_key(self.slice_key))


def _as(value: Any, kind: type[_Kind]) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where only {kind.__name__} can be")
    return value


def _find_groups() -> dict[str, type[Group]]:
    groups: dict[str, type[Group]] = {}
    owners: list[type[BaseModel]] = [SliceJob, *TASKS.values()]
    for owner in owners:
        for name, field in owner.model_fields.items():
            if declaration(field) is None and name != "task":
                groups.setdefault(name, models_of(field.annotation)[0])
    return groups


#: The groups; of the engine, and where tasks differ, the model that has the most.
GROUPS: Mapping[str, type[Group]] = _find_groups()
