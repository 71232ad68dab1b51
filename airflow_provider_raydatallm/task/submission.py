"""Builds the spec and the environment of a job from the operator's arguments."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pydantic
import pydantic_core

from airflow_provider_raydatallm.contract.addresses import check_absolute
from airflow_provider_raydatallm.contract.log.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.dialect import engines_with
from airflow_provider_raydatallm.contract.spec.engines import AUTO, KINDS, is_profile, with_kind
from airflow_provider_raydatallm.contract.spec.engines.http import KEY_VARIABLE, Http, clean_key
from airflow_provider_raydatallm.contract.spec.gate import PROBES
from airflow_provider_raydatallm.contract.spec.hold import Hold
from airflow_provider_raydatallm.contract.spec.leaves import ARGUMENTS, COLLECTIONS, LEAVES, Leaf, expand
from airflow_provider_raydatallm.contract.spec.limits import TaskLimits
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS, SliceJob
from airflow_provider_raydatallm.contract.spec.tasks import DEFAULT_TASK
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
    parse_seconds,
    to_url,
)
from airflow_provider_raydatallm.task.gpu_price import with_gpu_price

#: Leaves that are paths, which the cluster opens. An answer cache, and adapters, have rules of their own.
_PATHS = ("input_path", "output_path", "publish.metadata_path", "publish.quarantine_path")
#: Types of connections whose password may be a model hub's token.
_MODEL_CONNECTIONS = ("huggingface", "http", "generic")

#: Arguments that may bring a row's own into its request, and the one that says which of them count.
_OF_ROWS = {leaf.group or leaf.path for leaf in LEAVES.values() if leaf.declared.is_of_row} | {"task"}
#: Texts among them.
_PROMPTS = _OF_ROWS & LEAVES.keys() - COLLECTIONS
_FIELD = re.compile(r"\{[^{}]+\}")
#: Leaves that depend on the task beside those that it owns.
_OF_SOME_TASKS = (
    "quality.on_too_long", "quality.max_invalid", "quality.repair", "quality.golden", "quality.gates",
)  # fmt: skip
#: Leaves of a form, which may be empty.
_MAY_BE_EMPTY = ("source.max_rows", "source.trial")
#: Leaves of which None is a value.
_MAY_BE_NONE = ("engine.idle_timeout",)


def job_arguments(operator: Any) -> dict[str, Any]:
    """Returns the operator's arguments that describe its job, as they are written."""
    return {name: getattr(operator, name) for name in ARGUMENTS}


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
        wait_limits(known.get("limits"))
        hold_of(known.get("quality"))
        check_that_a_gate_holds(written.get("quality"))
        fields = spec_fields(known)
    except ValueError as e:
        raise RayLLMInputError(f"{task_id}: {e}") from None
    if known.get("engine") != arguments["engine"]:
        fields["engine"] = _checkable_engine(fields.get("engine", {}), str(fields.get("model_source")))
        # It needs a max_model_len, which the engine may hold.
        fields = _without_leaves(fields, ["quality.on_too_long"])
    if known.get("adapter") != arguments["adapter"]:  # its leaves need each other
        fields.pop("adapter", None)
    if is_rendered_later(arguments["task"]):  # what can be said of any task, is
        own = [path for path, leaf in LEAVES.items() if leaf.group != "engine" and leaf.kinds]
        fields = _without_leaves(fields, [*own, *_OF_SOME_TASKS])
    quality = arguments["quality"]
    is_asked_later = isinstance(quality, Mapping) and any(is_rendered_later(quality.get(n)) for n in PROBES)
    if _is_later(arguments["choices"]) or is_asked_later:  # what they are of is not known
        fields = _without_leaves(fields, ["quality.gates"])
    for leaf in _standing_for_later(arguments):
        stand_in = {leaf.name: leaf.declared.stand_in}
        fields = {**stand_in, **fields} if leaf.group is None else fields
        if leaf.group is not None:
            fields[leaf.group] = {**stand_in, **fields.get(leaf.group, {})}
    job = build_spec(task_id, {**fields, "slice_key": "x"})
    if not any(_is_later(arguments[name]) for name in _OF_ROWS):
        check_rows_differ(task_id, job)


def _standing_for_later(arguments: Mapping[str, Any]) -> Iterator[Leaf]:
    """The leaves that are rendered later, and for which something stands until then."""
    is_task_known = not is_rendered_later(arguments["task"])
    for leaf in LEAVES.values():
        is_of_any = is_task_known or not leaf.kinds or f"task={DEFAULT_TASK!r}" in leaf.kinds
        can_stand = leaf.group != "engine" and leaf.declared.stand_in is not None and is_of_any
        if can_stand and _is_later(arguments[leaf.group or leaf.name]):
            yield leaf


def _checkable_engine(leaves: Mapping[str, Any], model_source: str) -> dict[str, Any]:
    """Returns the leaves of an engine of which more is known later, with what they need of that. A kind that
    is not known, which a profile may name, is one that has all of the leaves."""
    kind = leaves.get("kind", AUTO)
    if kind == AUTO:
        kind = with_kind(leaves, model_source)["kind"]
        if (able := engines_with(leaves)) and kind not in able:
            kind = able[0]
    fields = KINDS[str(kind)].model_fields if str(kind) in KINDS else {}
    declared = {name: LEAVES[f"engine.{name}"].declared for name in fields}
    needed = {name: known.stand_in for name, known in declared.items() if known.stand_in is not None}
    return {**needed, **leaves, "kind": kind}


def _without_leaves(fields: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    return {
        name: {leaf: v for leaf, v in value.items() if f"{name}.{leaf}" not in paths}
        if name in GROUPS
        else value
        for name, value in fields.items()
        if name not in paths
    }


def check_secrets(arguments: Mapping[str, Any]) -> None:
    """
    :param arguments: of the operator, as they are written in the DAG; not all.
    :raises ValueError: naming one that holds a secret.
    """
    written = _without_profile(arguments)
    check_no_secrets("runtime_env", written.get("runtime_env"))
    for path, value in _leaves(written).items():
        if path in LEAVES and LEAVES[path].declared.may_hold_secret:
            check_no_secrets(path, value)


def _without_profile(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the DAG itself says: not the engine's profile, and no argument that is rendered later."""
    written = {}
    for name, value in arguments.items():
        if name in GROUPS and isinstance(value, Mapping):
            written[name] = {leaf: v for leaf, v in value.items() if (name, leaf) != ("engine", "profile")}
        elif not _is_later(value) and not (name == "engine" and is_profile(value)):
            written[name] = value
    return written


def _leaves(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of leaves by their paths.

    :raises ValueError: naming a group's leaf that does not exist.
    """
    leaves = {name: value for name, value in arguments.items() if name not in GROUPS}
    for group in (name for name in arguments if name in GROUPS):
        leaves |= {f"{group}.{leaf}": value for leaf, value in expand(group, arguments[group]).items()}
    return leaves


def wait_limits(limits: Any) -> WaitLimits:
    """Returns what the group says of the task's waiting.

    :raises ValueError: naming the leaf that cannot work.
    """
    return WaitLimits.from_leaves(expand("limits", limits))


def queue_seconds(limits: Any) -> float:
    """Returns for how long the task waits until its job may start.

    :raises ValueError: naming the leaf that cannot work.
    """
    queue = expand("limits", limits).get("queue")
    return TaskLimits().queue if queue is None else parse_seconds("limits.queue", queue, min_s=1)


def hold_of(quality: Any) -> Hold:
    """Returns what the group says of a slice that waits for a person.

    :raises ValueError: naming the leaf that cannot work.
    """
    hold = _parse_rendered(expand("quality", quality).get("hold"))
    try:
        return Hold.model_validate({} if hold is None else hold)
    except pydantic.ValidationError as e:
        raise ValueError(f"quality.hold: {describe_problems(e)}") from None


def check_that_a_gate_holds(quality: Any) -> None:
    """:raises ValueError: when the group says who decides, and nobody would ever be asked."""
    leaves = expand("quality", quality)
    if any(is_rendered_later(leaves.get(name)) for name in ("hold", "gates")):
        return
    hold, gates = (_parse_rendered(leaves.get(name)) for name in ("hold", "gates"))
    if hold and not (isinstance(gates, list | tuple) and any(map(_holds, gates))):
        raise ValueError(
            "quality.hold says who decides, and no gate of quality.gates holds: nobody would be asked; give "
            'one of them "then": "hold", or leave quality.hold out'
        )


def _holds(gate: Any) -> bool:
    return isinstance(gate, Mapping) and gate.get("then") == "hold"


def spec_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what arguments say of the job, each group as a dict.

    :param arguments: `job_arguments`, with the engine's profile resolved.
    :raises ValueError: naming a group's leaf that does not exist, a relative path, or a template that
        rendered to nothing: all rows would be asked that.
    """
    fields: dict[str, Any] = {}
    for path, written in _leaves(arguments).items():
        leaf = LEAVES.get(path)
        if leaf is not None and not leaf.is_in_job:
            continue
        value = _parsed(path, leaf, written)
        if value is None and path not in _MAY_BE_NONE:
            continue
        group, _, name = path.rpartition(".")
        (fields.setdefault(group, {}) if group else fields)[name] = value
    return fields


def _parsed(path: str, leaf: Leaf | None, value: Any) -> Any:
    """Returns an argument as the spec takes it; None for one that a form left empty.

    :raises ValueError: see `spec_fields`.
    """
    if path in _MAY_BE_EMPTY and str(value).strip() in ("", "None"):
        return None
    if leaf is not None and leaf.declared.is_address:
        value = {n: to_url(v) for n, v in value.items()} if isinstance(value, Mapping) else to_url(value)
    if path in COLLECTIONS:
        value = _parse_rendered(value)
    nothing = ("None", "") if path in ("prompt", "messages") else ("None",)
    if isinstance(value, str) and value.strip() in nothing:
        raise ValueError(f"{path} rendered to {value!r}: check the template")
    if path in _PATHS and isinstance(value, str):
        check_absolute(path, value)
    if path in _PROMPTS:
        check_is_text(path, value)
    return value


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
        job = SliceJob.model_validate({**fields, "engine": with_gpu_price(fields.get("engine", {}))})
        job.model_dump_json()
        return job
    except pydantic_core.PydanticSerializationError as e:
        raise RayLLMInputError(f"{task_id}: an argument cannot be sent to the cluster as JSON: {e}") from e
    except pydantic.ValidationError as e:
        raise RayLLMInputError(f"{task_id}: {describe_problems(e)}") from None


def check_rows_differ(task_id: str, job: SliceJob) -> None:
    """:raises RayLLMInputError: when nothing of a row is in its request."""
    task = job.task
    texts = [*task.texts, *task.sampling.values()]
    has_field = any(isinstance(text, str) and _FIELD.search(text) for text in texts)
    is_of_row = task.media is not None or task.lora.column is not None
    if task.prompt is not None and not has_field and not is_of_row:
        raise RayLLMInputError(
            f"{task_id}: prompt names no column: all rows would be asked the same, {task.prompt!r:.200}",
            advice="Put {column} where a row's value belongs",
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
        endpoint = job.engine if isinstance(job.engine, Http) else None
        token = _model_token(model_conn_id, endpoint.url if endpoint is not None else None)
        variables["HF_TOKEN" if endpoint is None else KEY_VARIABLE] = token
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
            "token of a model hub, and is not sent to the cluster",
            advice=f"Use a connection of type {', '.join(map(repr, _MODEL_CONNECTIONS))}",
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
            f"model_conn_id: the password of connection {conn_id!r} cannot be sent: {e}",
            advice="Set it again",
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
            f"{f' and port {port}' if port else ''}, and engine.url names {endpoint.netloc!r}",
            advice="Set the connection's host and port to it, if that is where the key belongs",
        )


def _port(address: SplitResult) -> int:
    return address.port or (443 if address.scheme == "https" else 80)


def read_finished_report(submission: JobSubmission) -> Report | None:
    """Returns the report of a slice that is already finished; None when this machine cannot tell."""
    # Parsing a DAG file must not import what opens storage.
    from airflow_provider_raydatallm.processor.publish.published import finished_report

    return None if uses_another_store(submission) else finished_report(submission.job)


def leave_failure(
    submission: JobSubmission, failure: Failure, task: Mapping[str, str], ended_run: str | None
) -> None:
    """Leaves why a task failed in its table's metadata, where no job could, and this machine can: for who
    looks at the table.

    :param ended_run: the task's job, if it had one, which has ended.
    """
    from airflow_provider_raydatallm.processor.store.run_record import try_to_leave_failure

    if not uses_another_store(submission):
        job = submission.job
        try_to_leave_failure(job.address, failure, task, lambda holder: str(holder) == ended_run)


def uses_another_store(submission: JobSubmission) -> bool:
    """Whether the job's S3 endpoint differs from this machine's, where a bucket of the same name may belong
    to others."""
    variables = {**((submission.runtime_env or {}).get("env_vars") or {}), **submission.lend_credentials()}
    return any(n.startswith("AWS_ENDPOINT_URL") and os.environ.get(n) != v for n, v in variables.items())
