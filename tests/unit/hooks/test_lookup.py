"""What a lookup of a connection says, with a real secrets backend that can be away, and a supervisor that
answers for Airflow's API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import lookup
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.sealed_backend import Vault, vault_of_this_process


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Vault]:
    with vault_of_this_process(monkeypatch, tmp_path / "vault") as vault:
        yield vault


class Supervisor:
    """What a worker's process asks, which asks Airflow's API server."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def send(self, message: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def asend(self, message: Any) -> Any:
        return self.send(message)


def error_of(conn_id: str) -> Exception:
    """Of the lookup, which the event loop's has, too."""
    with pytest.raises((RayConnectionError, RayConnectionNotFoundError, RayUnreachableError)) as e:
        lookup.get_connection(conn_id, advice="Add one")
    with pytest.raises(type(e.value), match="connection '"):
        asyncio.run(lookup.aget_connection(conn_id, advice="Add one"))
    return e.value


def test_connection_that_does_not_exist_is_told_from_a_backend_that_is_away(vault: Vault) -> None:
    vault.put("here", "ray://ray-head:8265")
    assert lookup.get_connection("here", advice="").host == "ray-head"
    missing = error_of("nowhere")
    assert isinstance(missing, RayConnectionNotFoundError)
    assert "'nowhere'" in missing.failure.sentence
    assert missing.failure.advice[0] == "Add one"
    vault.seal()
    away = error_of("here")
    assert isinstance(away, RayUnreachableError)
    assert "SealedBackend fails (ConnectionError)" in str(away)
    assert "sesame" not in str(away)
    for error in (missing, away):
        assert not isinstance(error, AirflowFailException)


def test_backend_that_is_back_when_it_is_asked_again_was_away(vault: Vault) -> None:
    vault.put("here", "ray://ray-head:8265")
    vault.fail_first(1)
    with pytest.raises(RayUnreachableError, match="SealedBackend did not give it a moment ago"):
        lookup.get_connection("here", advice="")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND), RayConnectionNotFoundError),
        (ErrorResponse(error=ErrorType.PERMISSION_DENIED), RayUnreachableError),
        (AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), RayUnreachableError),
        (OSError("the supervisor is gone"), RayUnreachableError),
    ],
)
def test_only_the_api_servers_own_word_says_that_a_connection_does_not_exist(
    answer: Any, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(answer), raising=False)
    assert type(error_of("c")) is kind


def test_backend_that_cannot_be_made_is_away(monkeypatch: pytest.MonkeyPatch, vault: Vault) -> None:
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", '{"no such": "argument"}')
    assert isinstance(error_of("c"), RayUnreachableError)


def test_hook_that_has_read_its_connection_does_without_a_backend_that_is_away(vault: Vault) -> None:
    vault.put("c", "ray://ray-head:8265")
    hook = RayHook("c")
    assert hook.settings.address == "http://ray-head:8265"
    vault.seal()
    hook.reread()
    assert hook.settings.address == "http://ray-head:8265"
    hook.reread()
    assert asyncio.run(hook._aclient()) is not None
    vault.open()
    vault.put("c", "ray://other-head:8265")
    hook.reread()
    assert hook.settings.address == "http://other-head:8265"


def test_connection_that_cannot_be_read_is_not_taken_for_a_cluster(vault: Vault) -> None:
    """The job's spec would be another, and its running job be stopped for that."""
    vault.put("c", "ray://local")
    assert RayHook("c").keeps_engines
    vault.seal()
    with pytest.raises(RayUnreachableError):
        _ = RayHook("c").keeps_engines


@pytest.mark.parametrize("limit_s", [1.0, 600.0])
def test_connection_that_does_not_exist_is_told_soon(limit_s: float) -> None:
    soon = min(limit_s, lookup.NOT_FOUND_SECONDS)
    assert lookup.patience(RayConnectionNotFoundError(), limit_s) == soon
    assert lookup.patience(RayUnreachableError(), limit_s) == limit_s
