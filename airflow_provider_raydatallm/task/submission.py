"""Builds the spec and the environment of a job from the operator's arguments."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import SplitResult, urlsplit

import pydantic
import pydantic_core

from airflow_provider_raydatallm.contract.addresses import check_absolute
from airflow_provider_raydatallm.contract.groups import GROUPS, flatten, is_profile, label
from airflow_provider_raydatallm.contract.log.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.endpoint import ENDPOINT_FIELDS, KEY_VARIABLE, clean_key
from airflow_provider_raydatallm.contract.spec.slice_job import ADDRESSES, MAY_HOLD_SECRETS, SliceJob
from airflow_provider_raydatallm.contract.spec.tasks import TASKS
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.hooks import lookup
from airflow_provider_raydatallm.hooks.connection import with_brackets
from airflow_provider_raydatallm.hooks.masking import mask
from airflow_provider_raydatallm.submit.aws_credentials import session_credentials_env
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.submit.session_policy import session_policy
from airflow_provider_raydatallm.task.arguments import (
    WaitLimits,
    check_groups,
    check_is_text,
    is_rendered_later,
    is_template_file,
    to_url,
)

#: Fields of the spec that a run sets.
_RUN_FIELDS = frozenset({
    "version", "slice_key", "slice_instant", "other_slice_keys", "slice_timezone", "code_hash",
})  # fmt: skip
_GROUPED = frozenset(field for leaves in GROUPS.values() for field in leaves.values())
#: The operator's arguments that describe the job: fields of the spec under the same name, and the groups.
_JOB_ARGUMENTS = (*sorted(SliceJob.model_fields.keys() - _RUN_FIELDS - _GROUPED), *GROUPS)
#: Which the cluster opens. An answer cache has rules of its own.
_PATHS = tuple(name for name in ADDRESSES if name != "answer_cache")
#: Leaves that concern the task's waiting, not the job.
_TASK_LEAVES = _GROUPED - SliceJob.model_fields.keys()

#: Types of connections whose password may be a model hub's token.
_MODEL_CONNECTIONS = ("huggingface", "http", "generic")

#: What stands for an argument that is rendered later, so that those that need it are checked already.
_NEEDED_BY_OTHERS: Mapping[str, tuple[str, Any]] = {
    "choices": ("choices", ("x", "y")), "regex": ("regex", "x"), "grammar": ("grammar", "x"),
    "query": ("query", "x"), "images": ("image_column", "x"), "audio": ("audio_column", "x"),
}  # fmt: skip
#: Texts that may have {column} fields.
_PROMPTS = ("prompt", "query", "system_prompt")
#: Arguments that may bring a row's own into its request, and the one that says which of them count.
_OF_ROWS = (*_PROMPTS, "sampling_params", "images", "audio", "adapter", "task")
_FIELD = re.compile(r"\{[^{}]+\}")
#: That only some tasks have.
_FIELDS_OF_TASKS = frozenset({"on_too_long", "max_invalid_fraction"}).union(
    *(t.fields for t in TASKS.values())
)


def _is_collection(annotation: Any) -> bool:
    """Whether the values of a field are lists, dicts or groups, and never text."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        return any(map(_is_collection, kinds)) and str not in kinds
    if get_origin(annotation) is Annotated:
        return _is_collection(get_args(annotation)[0])
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, (dict, list, tuple, pydantic.BaseModel))


_COLLECTIONS = frozenset(n for n, field in SliceJob.model_fields.items() if _is_collection(field.annotation))


def job_arguments(operator: Any) -> dict[str, Any]:
    """Returns the operator's arguments that describe its job, as they are written."""
    return {name: getattr(operator, name) for name in _JOB_ARGUMENTS}


def check_arguments(task_id: str, arguments: Mapping[str, Any], runtime_env: Any) -> None:
    """Checks what is known when the DAG is parsed. Templates, upstream outputs and engine profiles are
    checked when the task runs; that no secret is among the arguments, here: a rendered one would be shown.

    :param arguments: `job_arguments`.
    :raises RayLLMInputError: naming the argument that cannot work.
    """
    try:
        check_groups({name: arguments[name] for name in GROUPS})
        written = _without_profile(arguments)
        check_secrets({**written, "runtime_env": runtime_env})
        known = {
            name: {leaf: v for leaf, v in value.items() if not is_rendered_later(v)}
            if name in GROUPS and isinstance(value, Mapping)
            else value
            for name, value in written.items()
        }
        WaitLimits.from_arguments(flatten(known))
        fields = spec_fields(known)
    except ValueError as e:
        raise RayLLMInputError(f"{task_id}: {e}") from None
    is_engine_known = known.get("engine") == arguments["engine"]
    if not is_engine_known:
        fields.pop("on_too_long", None)  # needs a max_model_len, which it may hold
        if fields.get("engine") == "http":
            fields.setdefault("endpoint_url", "https://x")
        else:
            fields = {name: value for name, value in fields.items() if name not in ENDPOINT_FIELDS}
    if known.get("adapter") != arguments["adapter"]:  # its leaves need each other
        fields = {name: value for name, value in fields.items() if name not in GROUPS["adapter"].values()}
    for name, (field, value) in _NEEDED_BY_OTHERS.items():
        if is_rendered_later(arguments[name]):
            fields.setdefault(field, value)
    if is_rendered_later(arguments["task"]):
        fields = {name: value for name, value in fields.items() if name not in _FIELDS_OF_TASKS}
    needed = ("input_path", "output_path", "model_source", "prompt", "messages")
    later = [name for name in needed if _is_later(arguments[name])]
    job = build_spec(task_id, {**dict.fromkeys(later, "x"), **fields, "slice_key": "x"})
    if not any(_is_later(arguments[name]) for name in _OF_ROWS):
        check_rows_differ(task_id, job)


def check_secrets(arguments: Mapping[str, Any]) -> None:
    """
    :param arguments: of the operator, as they are written in the DAG; not all.
    :raises ValueError: naming one that holds a secret.
    """
    flat = flatten(_without_profile(arguments))
    for name in ("runtime_env", *MAY_HOLD_SECRETS):
        check_no_secrets(label(name), flat.get(name))


def _without_profile(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the DAG itself says: not the engine's profile, and no argument that is rendered later."""
    written = {}
    for name, value in arguments.items():
        if name in GROUPS and isinstance(value, Mapping):
            written[name] = {leaf: v for leaf, v in value.items() if (name, leaf) != ("engine", "profile")}
        elif not _is_later(value) and not (name == "engine" and is_profile(value)):
            written[name] = value
    return written


def spec_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the spec that arguments set.

    :param arguments: `job_arguments`, with the engine's profile resolved.
    :raises ValueError: naming a group's leaf that does not exist, a relative path, or a template that
        rendered to nothing: all rows would be asked that.
    """
    fields = {name: value for name, value in flatten(arguments).items() if name not in _TASK_LEAVES}
    fields |= {name: to_url(fields[name]) for name in (*ADDRESSES, "adapter_path") if name in fields}
    if isinstance(paths := fields.get("adapter_paths"), Mapping):
        fields["adapter_paths"] = {name: to_url(path) for name, path in paths.items()}
    fields |= {name: _parse_rendered(fields[name]) for name in _COLLECTIONS & fields.keys()}
    for name in ("max_rows", "trial"):  # a form's, which may be empty
        if str(fields.get(name)).strip() in ("", "None"):
            fields.pop(name, None)
    for name, value in fields.items():
        nothing = ("None", "") if name in ("prompt", "messages") else ("None",)
        if isinstance(value, str) and value.strip() in nothing:
            raise ValueError(f"{label(name)} rendered to {value!r}: check the template")
        if name in _PATHS and isinstance(value, str):
            check_absolute(label(name), value)
        if name in _PROMPTS:
            check_is_text(name, value)
    return {name: v for name, v in fields.items() if v is not None or name == "engine_idle_timeout"}


def _parse_rendered(value: Any) -> Any:
    """Returns the list or the dict that a template has written as text, as Python or JSON does."""
    if not isinstance(value, str) or value.strip()[:1] not in tuple("[({"):
        return value
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return value


def build_spec(task_id: str, fields: Mapping[str, Any]) -> SliceJob:
    """:raises RayLLMInputError: naming the argument that cannot work."""
    try:
        job = SliceJob.model_validate(fields)
        job.model_dump_json()
        return job
    except pydantic_core.PydanticSerializationError as e:
        raise RayLLMInputError(f"{task_id}: an argument cannot be sent to the cluster as JSON: {e}") from e
    except pydantic.ValidationError as e:
        raise RayLLMInputError(f"{task_id}: {describe_problems(e)}") from None


def check_rows_differ(task_id: str, job: SliceJob) -> None:
    """:raises RayLLMInputError: when nothing of a row is in its request."""
    texts = [getattr(job, name) for name in _PROMPTS] + list(job.sampling_params.values())
    has_field = any(isinstance(text, str) and _FIELD.search(text) for text in texts)
    of_row = (job.image_column, job.audio_column, job.adapter_column)
    if job.prompt is not None and not has_field and not any(of_row):
        raise RayLLMInputError(
            f"{task_id}: prompt names no column: all rows would be asked the same, {job.prompt!r:.200}. Put "
            "{column} where a row's value belongs"
        )


def _is_later(value: Any) -> bool:
    return is_rendered_later(value) or is_template_file(value)


def credentials_env(
    job: SliceJob,
    runtime_env: Mapping[str, Any] | None,
    *,
    storage_conn_id: str | None,
    model_conn_id: str | None,
    allow_static: bool,
    session_name: str,
) -> dict[str, str]:
    """Returns the environment variables that give a job access to its storage and its model."""
    variables: dict[str, str] = {}
    if storage_conn_id is not None:
        variables |= session_credentials_env(
            storage_conn_id,
            allow_static=allow_static,
            session_name=session_name,
            policy_of=partial(session_policy, job, runtime_env),
        )
    if model_conn_id is not None:
        token = _model_token(model_conn_id, job.endpoint_url)
        variables["HF_TOKEN" if job.endpoint_host is None else KEY_VARIABLE] = token
    return variables


def _model_token(conn_id: str, endpoint_url: str | None) -> str:
    """:param endpoint_url: to which the token is a key; None for a model hub's."""
    connection = lookup.get_connection(
        conn_id,
        advice="model_conn_id needs one of type 'huggingface' or 'generic' with the access token as its "
        "password",
    )
    if connection.conn_type not in _MODEL_CONNECTIONS:
        # Whoever names a connection must not have any password of Airflow's sent to the cluster.
        raise RayLLMInputError(
            f"model_conn_id: connection {conn_id!r} is of type {connection.conn_type!r}: its password is no "
            "token of a model hub, and is not sent to the cluster. Use a connection of type "
            f"{', '.join(map(repr, _MODEL_CONNECTIONS))}"
        )
    password = connection.password or ""
    if not password.strip():
        raise RayLLMInputError(
            f"model_conn_id: connection {conn_id!r} has no password, which is the access token"
        )
    if endpoint_url is not None:
        _check_key_belongs_to(connection, urlsplit(endpoint_url))
    mask(password)
    try:
        key = clean_key(password)
    except ValueError as e:
        raise RayLLMInputError(
            f"model_conn_id: the password of connection {conn_id!r} cannot be sent: {e}. Set it again"
        ) from None
    mask(key)
    return key


def _check_key_belongs_to(connection: Any, endpoint: SplitResult) -> None:
    """:raises RayLLMInputError: so that whoever sets engine.url cannot have the key sent to a host of their
    own, or to another port where the connection names one.
    """
    host = with_brackets(connection.host or "")
    place = urlsplit(host if "://" in host else f"//{host}")
    port = connection.port or place.port
    if (place.hostname, port or _port(endpoint)) != (endpoint.hostname, _port(endpoint)):
        raise RayLLMInputError(
            f"model_conn_id: the key of connection {connection.conn_id!r} is for the host {place.hostname!r}"
            f"{f' and port {port}' if port else ''}, and engine.url names {endpoint.netloc!r}: set the "
            "connection's host and port to it, if that is where the key belongs"
        )


def _port(address: SplitResult) -> int:
    return address.port or (443 if address.scheme == "https" else 80)


def read_finished_report(submission: JobSubmission) -> Report | None:
    """Returns the report of a slice that is already finished; None when this machine cannot tell."""
    # Parsing a DAG file must not import what opens storage.
    from airflow_provider_raydatallm.processor.store.published import finished_report

    return None if uses_another_store(submission) else finished_report(submission.job)


def uses_another_store(submission: JobSubmission) -> bool:
    """Whether the job's S3 endpoint differs from this machine's, where a bucket of the same name may belong
    to others."""
    variables = {**((submission.runtime_env or {}).get("env_vars") or {}), **submission.lend_credentials()}
    return any(n.startswith("AWS_ENDPOINT_URL") and os.environ.get(n) != v for n, v in variables.items())
