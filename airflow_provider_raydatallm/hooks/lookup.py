"""Looks up Airflow's connections, and tells one that does not exist from one that cannot be read now.

Airflow asks its secrets backends one after another, passes over those that fail, and in the end says "not
found" for both. So when it does, each backend is asked again here, by itself. A retry may help in both cases:
neither error is one of `RayLLMInputError`.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayUnreachableError,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: For how long a task asks again for a connection that no backend has: Airflow's API server says so, too,
#: while a backend of its own is away.
NOT_FOUND_SECONDS = 15.0


def patience(error: Exception, limit_s: float) -> float:
    """Returns the seconds for which a lookup that failed is tried again.

    :param limit_s: the task's own limit.
    """
    return min(limit_s, NOT_FOUND_SECONDS) if isinstance(error, RayConnectionNotFoundError) else limit_s


def get_connection(conn_id: str, *, advice: str) -> Connection:
    """
    :param advice: what to do where there is no such connection, as a `Failure` has it.
    :raises RayConnectionNotFoundError: when every backend answers, and none has it.
    :raises RayUnreachableError: when a backend, or Airflow's API server, does not answer.
    :raises RayConnectionError: when its environment variable cannot be read.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except Exception as e:
        raise _error_of(conn_id, advice, e) from e


async def aget_connection(conn_id: str, *, advice: str) -> Connection:
    """`get_connection`, without blocking the event loop."""
    try:
        return await BaseHook.aget_connection(conn_id)
    except Exception as e:
        raise await asyncio.to_thread(_error_of, conn_id, advice, e) from e


def _error_of(conn_id: str, advice: str, error: Exception) -> Exception:
    try:
        silent = _silent_backend(conn_id)
    except RayConnectionError as e:
        return e
    except Exception as e:  # one that cannot even be made
        silent = f"a secrets backend cannot start ({type(e).__name__})"
    if silent is not None:
        return RayUnreachableError(f"cannot read Airflow's connection {conn_id!r}: {silent}")
    return RayConnectionNotFoundError(
        f"there is no connection {conn_id!r}",
        advice=(
            advice,
            f"If it exists, a secrets backend of Airflow's API server may be away ({type(error).__name__})",
        ),
    )


def _silent_backend(conn_id: str) -> str | None:
    """Returns which secrets backend does not answer, and why; None when all do, and none has the connection.

    An error's text may quote what a backend holds: its class is shown alone.

    :raises RayConnectionError: when the connection's environment variable cannot be read.
    """
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded
    from airflow.secrets.environment_variables import EnvironmentVariablesBackend

    for backend in ensure_secrets_backend_loaded():
        name, variable = type(backend).__name__, f"AIRFLOW_CONN_{conn_id.upper()}"
        try:
            if _has(backend, conn_id):
                return f"{name} did not give it a moment ago"
        except Exception as e:
            if isinstance(backend, EnvironmentVariablesBackend) and variable in os.environ:
                raise RayConnectionError(
                    f"connection {conn_id!r}: Airflow cannot read what {variable} holds",
                    advice="Write a URI or a JSON object, with a number as its port, such as "
                    '{"conn_type": "ray", "host": "http://ray-head:8265"}',
                ) from None
            return f"{name} fails ({_kind(e)})"
    return None


def _has(backend: Any, conn_id: str) -> bool:
    """
    :raises Exception: when the backend does not answer.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection
    from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend

    if not isinstance(backend, ExecutionAPISecretsBackend):
        return backend.get_connection(conn_id=conn_id) is not None
    # For an API server that is away it would answer None, too.
    answer = task_runner.SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
    if isinstance(answer, ErrorResponse) and answer.error != ErrorType.CONNECTION_NOT_FOUND:
        raise AirflowRuntimeError(answer)
    return not isinstance(answer, ErrorResponse)


def _kind(error: Exception) -> str:
    return error.error.error.value if isinstance(error, AirflowRuntimeError) else type(error).__name__
