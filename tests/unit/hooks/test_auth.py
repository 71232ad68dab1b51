"""The cluster's token: where it is read, and how it is sent."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_raydatallm.clusters.base import Access
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.auth import Token, is_unencrypted, read_token
from airflow_provider_raydatallm.hooks.connection import RaySettings
from tests.support.http_server import Request, TlsServer, http_server
from tests.support.ray_connections import connection, hook_to, settings_of, token_file, with_extra


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
    token_file(monkeypatch, tmp_path / "mine", "of-file\n")
    assert token_of(**with_extra(auth_file=f"{tmp_path}/mine")) == ("of-file", f"auth_file '{tmp_path}/mine'")
    assert token_of(password=" of-password\n") == ("of-password", "the password")
    assert token_of(**with_extra(headers={"authorization": "Basic eA=="})) is None
    local = RaySettings.from_connection(connection(host="local"))
    head = local.for_cluster(Access("http://127.0.0.1:1", "of-head"))
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
    monkeypatch.setenv("AIRFLOW__RAY_LLM__TOKEN_FOLDER", str(tmp_path))
    if content is not None:
        token_file(monkeypatch, path, content)
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


def value_in(auth_file: str) -> str:
    token = token_of(**with_extra(auth_file=auth_file))
    assert token is not None
    return token.value


def test_only_files_in_folders_for_tokens_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder, other = (tmp_path / name for name in ("home", "folder", "other"))
    for place in (home / ".ray", folder, other):
        place.mkdir(parents=True)
    token_file(monkeypatch, other / "fernet_key", "of-other")
    token_file(monkeypatch, home / ".ray" / "auth_token", "of-home")
    (folder / "..2026").mkdir()
    token_file(monkeypatch, folder / "..2026" / "token", "of-mount")
    (folder / "token").symlink_to("..2026/token")  # as Kubernetes mounts a secret
    (folder / "outside").symlink_to(other / "fernet_key")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("AIRFLOW__RAY_LLM__TOKEN_FOLDER")
    climbing = f"{home}/.ray/../../other/fernet_key"
    for path in (other / "fernet_key", climbing, folder / "token", "/proc/self/environ"):
        with pytest.raises(RayConnectionError, match=r"auth_file .* is not in .*\.ray.*token_folder") as e:
            token_of(**with_extra(auth_file=str(path)))
        assert "of-other" not in str(e.value)
    assert value_in(f"{home}/.ray/auth_token") == "of-home"
    monkeypatch.setenv("AIRFLOW__RAY_LLM__TOKEN_FOLDER", str(folder))
    assert value_in(f"{folder}/token") == "of-mount"
    with pytest.raises(RayConnectionError, match="is not in"):
        token_of(**with_extra(auth_file=f"{folder}/outside"))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660])
def test_token_file_that_others_can_read_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = token_file(monkeypatch, tmp_path / "t", "sesame")
    file.chmod(mode)
    with pytest.raises(RayConnectionError, match=rf"{mode:04o}.*chmod 600"):
        token_of(**with_extra(auth_file=str(file)))
    file.chmod(0o400)
    assert value_in(str(file)) == "sesame"


def test_token_goes_to_its_own_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def listen(request: Request) -> tuple[int, Any]:
        heard.append(str(request.headers).lower())
        return 200, {"ray_version": "2.60.0"}

    extra = {"headers": {"Authorization": "Basic eDp5"}}  # httpx itself would drop no other header
    with http_server(listen) as other, http_server(lambda request: (307, other)) as address:
        hook = hook_to(monkeypatch, host=address, password="sesame", extra=extra)
        with pytest.raises(RayUnreachableError, match=f"redirects to {other}"):
            hook.call(jobs_api.get_version())
        with pytest.raises(RayUnreachableError, match=f"redirects to {other}"):
            asyncio.run(hook.acall(jobs_api.get_version()))
        assert heard == []
        with hook.get_conn() as client:
            client.get(f"{other}/api/version")
    assert len(heard) == 1
    assert "sesame" not in heard[0]


def test_plain_http_is_warned_of_once_unless_it_stays_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = {
        "http://ray-head:8265": True, "http://10.0.0.7:8265": True, "https://ray-head": False,
        "http://127.0.0.1:8265": False, "http://localhost:8265": False, "http://[::1]:8265": False,
    }  # fmt: skip
    assert {host: is_unencrypted(httpx.URL(host)) for host in hosts} == hosts
    with http_server(lambda request: (200, {"ray_version": "2.60.0"})) as address:
        hook = hook_to(monkeypatch, host="http://ray-head", password="sesame", extra={"proxy": address})
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert hook.call(jobs_api.get_version()) == "2.60.0"
            local = hook_to(monkeypatch, host=address, password="sesame")
            assert local.call(jobs_api.get_version()) == "2.60.0"
    [warning] = [r.getMessage() for r in caplog.records if "without encryption" in r.getMessage()]
    assert "connection 'tls': the token goes to http://" in warning
    assert "sesame" not in warning
