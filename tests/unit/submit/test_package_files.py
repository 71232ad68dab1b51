"""What of a folder of code travels to the cluster, whose token's holders can all read it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.submit.package_files import read_files, user_files

KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"


def write(root: Path, *names: str, text: str = "x = 1") -> None:
    for name in names:
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(text)


@pytest.mark.parametrize("name", [
    "id_rsa", "id_ed25519", "sub/tls.key", "client.p12", "a.PFX", "a.jks", "credentials", "credentials.json",
    "aws_credentials", "gcp-credentials.json", "service-account.json", "service_account-prod.json",
    "secrets.yaml",
    "client_secret_1.json", "prod.env", "kubeconfig", "my.kubeconfig", "airflow.cfg", "_netrc", "token.json",
    "id_rsa.bak", "prod.env~", "netrc", "hf_token.txt", "token", "passwords.csv", "prod.tfvars",
    ".env", ".netrc", ".aws/credentials", ".ssh/id_rsa", ".pypirc",
])  # fmt: skip
def test_file_named_like_a_secret_is_left_out(tmp_path: Path, name: str) -> None:
    write(tmp_path, "m.py", name)
    assert set(user_files(tmp_path)) == {"m.py"}


@pytest.mark.parametrize("name", [
    "credentials.py", "secrets.py", "keys.py", "id_rsa.pub", "tokenizer.json", "special_tokens.json",
    "monkey.json",
    "keynote.txt", "environment.yml", "prompts/secretary.txt", "token_budget.json", "tls.pem", "config.ini",
])  # fmt: skip
def test_ordinary_file_travels(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, text="-----BEGIN CERTIFICATE-----")
    assert set(user_files(tmp_path)) == {name}


@pytest.mark.parametrize("name", ["tls.pem", "my-project-1.json", "notes.txt"])
def test_private_key_in_any_file_but_code_stays_here(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "m.py", text=KEY)
    assert set(user_files(tmp_path)) == {"m.py"}


@pytest.mark.parametrize("text", [
    "-----BEGIN PGP PRIVATE KEY BLOCK-----", "PuTTY-User-Key-File-3: ssh-ed25519",
    "key: sk-proj-abcdefghij0123456789AB",
])  # fmt: skip
def test_other_private_keys_and_keys_in_settings_stay_here(tmp_path: Path, text: str) -> None:
    write(tmp_path, "m.py", text="x = 1")
    write(tmp_path, "config.yaml", text=text)
    (tmp_path / "tls.pem").write_bytes(KEY.encode("utf-16"))
    assert set(user_files(tmp_path)) == {"m.py"}


def test_link_is_what_its_target_is(tmp_path: Path) -> None:
    write(tmp_path, "m.py", "id_rsa", ".env")
    (tmp_path / "k.py").symlink_to("id_rsa")
    assert set(user_files(tmp_path)) == {"m.py"}
    (tmp_path / "settings.txt").symlink_to(".env")
    with pytest.raises(RayLLMInputError, match="not sent"):
        user_files(tmp_path)


def test_one_line_says_what_was_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "m.py", *(f"{i}.key" for i in range(9)), "0\nERROR.key")
    with caplog.at_level(logging.WARNING):
        user_files(tmp_path)
    [record] = caplog.records
    assert record.getMessage().endswith(r"secrets: 0\nERROR.key, 0.key, 1.key, 2.key, 3.key, ...")


@pytest.mark.parametrize("code", ['open("credentials.json")', "Path(here, 'conf/credentials.json')"])
def test_code_that_needs_such_a_file_fails_before_anything_is_sent(tmp_path: Path, code: str) -> None:
    write(tmp_path, "conf/credentials.json", "unused.key")
    write(tmp_path, "sub/m.py", text=code)
    with pytest.raises(RayLLMInputError, match=r"'sub/m\.py' .*'credentials\.json'.*model_conn_id"):
        user_files(tmp_path)
    write(tmp_path, "sub/m.py", text="# credentials.json is elsewhere")
    assert set(user_files(tmp_path)) == {"sub/m.py"}


def test_links_within_the_package_are_followed(tmp_path: Path) -> None:
    root = tmp_path / "real"
    write(root, "m.py", "sub/n.py")
    (root / "link.py").symlink_to("m.py")
    (root / "copy").symlink_to("sub")
    (tmp_path / "current").symlink_to("real")
    for folder in (root, tmp_path / "current"):
        assert set(user_files(folder)) == {"m.py", "sub/n.py", "link.py", "copy/n.py"}


@pytest.mark.parametrize(
    "target", ["../outside.py", "/etc/hostname", "../folder", "/etc", "..", ".", "../nothing"]
)
def test_link_that_leads_out_of_the_package_is_refused_by_name(tmp_path: Path, target: str) -> None:
    root = tmp_path / "pkg"
    write(tmp_path, "pkg/m.py", "outside.py", "folder/x.py")
    (root / "shortcut").symlink_to(target)
    with pytest.raises(RayLLMInputError, match=r"shortcut' is a link"):
        user_files(root)


def test_links_in_a_circle_and_pipes_end_nothing(tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    write(root, "a/m.py", "b/n.py")
    os.mkfifo(root / "pipe.py")
    assert set(user_files(root)) == {"a/m.py", "b/n.py"}
    (root / "a/to_b").symlink_to("../b")
    (root / "b/to_a").symlink_to("../a")
    with pytest.raises(RayLLMInputError, match="a folder that it is in"):
        user_files(root)


def test_own_package_may_be_installed_by_links(tmp_path: Path) -> None:
    """As uv does with `--link-mode=symlink`."""
    write(tmp_path, "cache/m.py")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/m.py").symlink_to("../cache/m.py")
    assert dict(read_files(tmp_path / "pkg")) == {"m.py": b"x = 1"}
