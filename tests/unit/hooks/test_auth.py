"""The cluster's token: where it is read, and how it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.auth import Token, read_token
from airflow_provider_raydatallm.hooks.connection import RaySettings
from tests.support.http_server import TlsServer
from tests.support.ray_connections import connection, hook_to, settings_of, with_extra


def token_of(**given: Any) -> Token | None:
    return read_token(settings_of(**given))


def test_token_comes_from_the_connection_then_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token_of() is None
    (tmp_path / "file").write_text(" of-path \n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "file"))
    assert token_of() == ("of-path", f"RAY_AUTH_TOKEN_PATH '{tmp_path}/file'")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-variable\n")
    assert token_of() == ("of-variable", "RAY_AUTH_TOKEN of the environment")
    (tmp_path / "mine").write_text("of-file\n")
    assert token_of(**with_extra(auth_file=f"{tmp_path}/mine")) == ("of-file", f"auth_file '{tmp_path}/mine'")
    assert token_of(password=" of-password\n") == ("of-password", "the password")
    assert token_of(**with_extra(headers={"authorization": "Basic eA=="})) is None
    head = RaySettings.from_connection(connection(host="local")).for_local_head(
        "http://127.0.0.1:1", "of-head"
    )
    assert read_token(head) == ("of-head", "the password")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-home")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert token_of() is None


@pytest.mark.parametrize(("content", "says"), [
    (None, "cannot be read"), ("\n ", "is empty"), ("two words", "is not a valid token"),
    ("a\nb", "is not a valid token"),
])  # fmt: skip
@pytest.mark.parametrize("by", ["auth_file", "RAY_AUTH_TOKEN_PATH"])
def test_token_file_that_cannot_work_is_named(
    by: str, content: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_text(content)
    extra = {"auth_file": str(path)} if by == "auth_file" else {}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    with pytest.raises(RayConnectionError, match=f"{by} '{path}'.* {says}") as e:
        token_of(**with_extra(**extra))
    assert str(e.value).startswith("connection 'c': ")
    assert "two words" not in str(e.value)


def test_token_and_headers_are_sent_by_both_kinds_of_call(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "host": tls.address, "password": "sesame",
        "extra": {"ca_file": str(tls.ca_file), "headers": {"X-Team": "data"}},
    }  # fmt: skip
    assert hook_to(monkeypatch, **given).call(jobs_api.get_version()) == "2.60.0"
    assert asyncio.run(hook_to(monkeypatch, **given).acall(jobs_api.get_version())) == "2.60.0"
    assert [(h["authorization"], h["x-team"]) for h in tls.headers] == [("Bearer sesame", "data")] * 2


def test_token_makes_room_for_the_authorization_of_a_proxy(
    tls: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"ca_file": str(tls.ca_file), "headers": {"authorization": "Basic eDp5"}}
    hook_to(monkeypatch, host=tls.address, password="sesame", extra=extra).call(jobs_api.get_version())
    assert tls.headers[0]["authorization"] == "Basic eDp5"
    assert tls.headers[0]["x-ray-authorization"] == "Bearer sesame"
