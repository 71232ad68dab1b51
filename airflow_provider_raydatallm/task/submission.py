"""Builds the spec and the environment of a job from the operator's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import pydantic
import pydantic_core
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_raydatallm.contract.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.report import Report
from airflow_provider_raydatallm.contract.spec import ADDRESSES, MAY_HOLD_SECRETS, SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.hooks.masking import mask
from airflow_provider_raydatallm.submit.aws_credentials import session_credentials_env
from airflow_provider_raydatallm.submit.ray_job import JobSubmission
from airflow_provider_raydatallm.submit.session_policy import session_policy
from airflow_provider_raydatallm.task.arguments import is_rendered_later, to_url

#: The operator's arguments that are fields of the spec under the same name.
_SPEC_ARGUMENTS = SliceJob.model_fields.keys() - {
    "version", "slice_key", "slice_instant", "slice_timezone", "code_hash",
}  # fmt: skip

#: Types of connections whose password may be a model hub's token.
_MODEL_CONNECTIONS = ("huggingface", "http", "generic")


def spec_arguments(operator: Any) -> dict[str, Any]:
    """Returns the operator's arguments that belong to the spec, without those that are None.

    :raises RayLLMInputError: when a template rendered to nothing: all rows would be asked that.
    """
    arguments = {name: getattr(operator, name) for name in _SPEC_ARGUMENTS}
    arguments |= {name: to_url(arguments[name]) for name in ADDRESSES}
    if isinstance(operator.max_rows, str) and operator.max_rows.strip() in ("", "None"):
        arguments["max_rows"] = None
    for name, value in arguments.items():
        if isinstance(value, str) and value.strip() in (("None", "") if name == "prompt" else ("None",)):
            raise RayLLMInputError(f"{operator.task_id}: {name} rendered to {value!r}: check the template")
    return {name: v for name, v in arguments.items() if v is not None or name == "engine_idle_timeout"}


def check_arguments(task_id: str, arguments: Mapping[str, Any]) -> None:
    """Checks what is known when the DAG is parsed. Templates and upstream outputs are checked when rendered;
    that no secret is among the arguments, here: a rendered one would be shown.

    :raises RayLLMInputError: naming the argument that cannot work.
    """
    try:
        for name in ("runtime_env", *MAY_HOLD_SECRETS):
            check_no_secrets(name, arguments.get(name))
    except ValueError as e:
        raise RayLLMInputError(f"{task_id}: {e}") from None
    arguments = {name: value for name, value in arguments.items() if name != "runtime_env"}
    known = {name: v for name, v in arguments.items() if not is_rendered_later(v)}
    if "engine_kwargs" not in known and "engine_kwargs" in arguments:
        known.pop("on_too_long", None)  # needs a max_model_len, which they may hold
    required = ("input_path", "output_path", "model_source", *(("prompt",) if "prompt" in arguments else ()))
    build_spec(task_id, {**dict.fromkeys(required, "x"), **known, "slice_key": "x"})


def build_spec(task_id: str, fields: Mapping[str, Any]) -> SliceJob:
    """:raises RayLLMInputError: naming the argument that cannot work."""
    try:
        job = SliceJob.model_validate(fields)
        job.model_dump_json()
        return job
    except pydantic_core.PydanticSerializationError as e:
        raise RayLLMInputError(f"{task_id}: an argument cannot be sent to the cluster as JSON: {e}") from e
    except pydantic.ValidationError as e:
        problems = []
        for error in e.errors(include_url=False):
            field = ".".join(str(part) for part in error["loc"])
            message = error["msg"].removeprefix("Value error, ")
            # Some may hold a secret, and their messages quote the value when not.
            is_shown = error["loc"][:1] not in [(name,) for name in (*ADDRESSES, *MAY_HOLD_SECRETS)]
            got = f" (got {error['input']!r:.200})" if is_shown else ""
            problems.append(f"{field}: {message}{got}" if field else message)
        raise RayLLMInputError(f"{task_id}: {'; '.join(problems)}") from None


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
        variables["HF_TOKEN"] = _model_token(model_conn_id)
    return variables


def _model_token(conn_id: str) -> str:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as e:
        raise RayLLMInputError(
            f"model_conn_id: there is no connection {conn_id!r}: add one of type 'huggingface' or 'generic' "
            "with the model hub's access token as its password"
        ) from e
    if connection.conn_type not in _MODEL_CONNECTIONS:
        # Whoever names a connection must not have any password of Airflow's sent to the cluster.
        raise RayLLMInputError(
            f"model_conn_id: connection {conn_id!r} is of type {connection.conn_type!r}: its password is no "
            "token of a model hub, and is not sent to the cluster. Use a connection of type "
            f"{', '.join(map(repr, _MODEL_CONNECTIONS))}"
        )
    if not connection.password:
        raise RayLLMInputError(
            f"model_conn_id: connection {conn_id!r} has no password, which is the access token"
        )
    mask(connection.password)
    return connection.password


def read_finished_report(submission: JobSubmission) -> Report | None:
    """Returns the report of a slice that is already finished; None when this machine cannot tell."""
    # Parsing a DAG file must not import what opens storage.
    from airflow_provider_raydatallm.processor.store.published import finished_report

    return None if uses_another_store(submission) else finished_report(submission.job)


def uses_another_store(submission: JobSubmission) -> bool:
    """Whether the job's S3 endpoint differs from this machine's, where a bucket of the same name may belong
    to others."""
    variables = {**((submission.runtime_env or {}).get("env_vars") or {}), **submission.env_vars}
    return any(n.startswith("AWS_ENDPOINT_URL") and os.environ.get(n) != v for n, v in variables.items())
