"""One redactor: what counts as a secret, and every way in which programs write one."""

from __future__ import annotations

import base64
import itertools
import json
import re
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest

from airflow_provider_raydatallm.contract.log.redaction import (
    Redactor,
    check_no_secrets,
    environment_secrets,
)
from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name

#: As AWS and people make them: with characters that every encoding changes.
SECRETS = [
    "wJalr/XUtnFEMI+K7MDENG=bPxRfiCY", 'pass"w\u00f6rd\\ & more', "hf_QwErTyUiOpAsDfGh",
    "FwoGZXIvYXdzEBYaD//x==",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_secret_is_redacted_in_every_encoding(secret: str) -> None:
    redact = Redactor([secret]).text
    in_json = json.dumps(secret)[1:-1]
    for text in (
        secret, repr(secret)[1:-1], in_json, json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(in_json)[1:-1], in_json.replace("/", "\\/"),
        quote(secret), quote(secret, safe=""), quote_plus(secret), quote(secret, safe="!'()*"),
        urlencode({"": secret})[1:], re.sub("%..", lambda code: code[0].lower(), quote(secret, safe="")),
        quote(quote(secret, safe=""), safe=""),
    ):  # fmt: skip
        assert redact(f"token={text};") == "token=***;", text
    for before, after in itertools.product(("", "u:", "us:", "user:"), ("", "\n", "}}")):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(f"{before}{secret}{after}".encode()).decode()
            # A character beside it holds some of its bits; the rest stands for the text around it.
            allowed = len(encode(before.encode()).decode().rstrip("=")) + 1 + 5
            assert "***" in redact(text), text
            assert len(redact(text).replace("***", "")) <= allowed, text


def test_secret_of_several_lines_is_redacted_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nqhkiG9w0BAQEFAASCBKcwggSj\n-----END KEY-----\n"
    redact = Redactor([key]).text
    assert redact("x MIIEvQIBADANBgkqhkiG9w0\nqhkiG9w0BAQEFAASCBKcwggSj y") == "x ***\n*** y"


def test_every_text_of_a_json_value_is_redacted_and_nothing_else_changes() -> None:
    value = {"rows": 3, "why": ["no access: hf_QwErTyUiOpAsDfGh", None, 1.5], "hf_QwErTyUiOpAsDfGh": True}
    redacted = {"rows": 3, "why": ["no access: ***", None, 1.5], "***": True}
    assert Redactor(["hf_QwErTyUiOpAsDfGh"]).value(value) == redacted
    assert Redactor(["false", "", " \n"]).text("false \n") == "false \n"
    assert Redactor([]).value({"rows": 3, "a": ["b", None, 1.5]}) == {"rows": 3, "a": ["b", None, 1.5]}
    assert Redactor([]).value({"api_key": "anything", "max_tokens": "anything"}) == {
        "api_key": "***", "max_tokens": "anything",
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "HF_TOKEN", "RAY_AUTH_TOKEN",
    "hf_token", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "api_key", "apiKey", "X-Api-Key", "PGPASSWORD",
    "password", "MYSQL_PWD", "client_secret", "my_secret_value", "AZURE_STORAGE_KEY", "Authorization",
    "AZURE_STORAGE_CONNECTION_STRING", "GITHUB_TOKEN", "authToken", "DB_PASSWD", "credentials",
])  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [
    "PATH", "PWD", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "AWS_CREDENTIAL_EXPIRATION", "AWS_DEFAULT_REGION",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "TOKENIZERS_PARALLELISM", "eos_token",
    "pad_token", "max_num_batched_tokens", "long_prefill_token_threshold", "skip_tokenizer_init", "tokenizer",
    "max_tokens", "VAULT_SECRET_PATH", "secret_name", "allowed_token_ids", "key", "SSH_AUTH_SOCK",
    "cache_key", "image_token",
])  # fmt: skip
def test_names_of_what_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_environment_holds_secrets_in_names_and_in_addresses() -> None:
    assert environment_secrets({
        "HF_TOKEN": "hub", "AWS_ACCESS_KEY_ID": "AKIA", "HOME": "/root", "PROXY": "http://squid:3128",
        "DATABASE_URL": "postgresql://me:p%40ss@db:5432/x", "RAY_ADDRESS": "10.0.0.1:6379",
    }) == {"hub", "AKIA", "p%40ss", "p@ss"}  # fmt: skip


@pytest.mark.parametrize(("value", "place"), [
    ({"hf_token": "hf_abcdefgh"}, "x['hf_token']"),
    ({"hf_token": "{{ conn.hub.password }}"}, "x['hf_token']"),
    ({"a": [{"env_vars": {"MY_SECRET": "abcdefgh"}}]}, "x['a'][0]['env_vars']['MY_SECRET']"),
    ({"env_vars": {"AWS_SECRET_ACCESS_KEY": "abcdefgh"}}, "x['env_vars']['AWS_SECRET_ACCESS_KEY']"),
    ({"DATABASE_URL": "postgresql://me:secret@db/x"}, "x['DATABASE_URL']"),
    ({"pip": ["--index-url https://abcdefgh@pypi.example/simple"]}, "x['pip'][0]"),
    ({"u": "https://{{ conn.x.login }}:{{ conn.x.password }}@h"}, "x['u']"),
    ("s3://AKIAKEY:wJal/rXU@bucket/model", "x"), ("s3://AKIAKEY@bucket/model", "x"),
])  # fmt: skip
def test_secrets_in_arguments_are_refused_with_the_way_out(value: Any, place: str) -> None:
    with pytest.raises(ValueError, match=r"model_conn_id.*storage_conn_id.*environment of the cluster") as e:
        check_no_secrets("x", value)
    assert str(e.value).startswith(f"{place} ")
    for secret in ("abcdefgh", "me:secret", "wJal"):
        assert secret not in str(e.value)


@pytest.mark.parametrize("value", [
    {"hf_token": True, "max_num_batched_tokens": 4096, "eos_token": "<|im_end|>", "tokenizer": "org/model"},
    {"env_vars": {"HF_HOME": "/models", "HTTP_PROXY": "http://squid:3128", "API_KEY": ""}},
    {"pip": ["git+ssh://git@github.com/a/b@main", "git+https://github.com/a/b@v1"]}, "s3://bucket/model",
    "org/model", None, "{{ var.json.arguments }}",
])  # fmt: skip
def test_arguments_without_secrets_pass(value: Any) -> None:
    check_no_secrets("x", value)
