"""Secrets in texts that nobody knew to hold one; and ordinary words, which stay."""

from __future__ import annotations

import time

import pytest

from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.log.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.log.secret_shapes import (
    KeyLines,
    holds_secret,
    is_secret_name,
    without_secrets,
)

KEY = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nqhkiG9w0BAQEFAASCBKcwggSj==\n"
    "-----END RSA PRIVATE KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkw.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
SIGNED = (
    "https://b.example/a.jpg?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2026&X-Amz-Signature=fe5f80f77d5fa3be"
)


@pytest.mark.parametrize("secret", [
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "sk-1234567890abcdef", "sk-proj-Ab12Cd34Ef56Gh78-Ij90",
    "sk-ant-api03-Ab12Cd34Ef56Gh78Ij90", "sk-abcdefghijklmnopqrstuvwxyz", "hf_QwErTyUiOpAsDfGhJkLz",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "github_pat_11ABCDEFG0abcdefghij_kl",
    "glpat-Ab12Cd34Ef56Gh78Ij90",
    "xoxb-123456789012-abcdef", "AIzaSyA1234567890abcdefghijklmnopqrstuv", JWT, KEY, KEY.replace("\n", "\\n"),
])  # fmt: skip
def test_secret_is_known_by_its_form(secret: str) -> None:
    assert holds_secret(secret)
    for before, after in (("", ""), ("key ", "."), ("'", "'"), ("(", ")"), ("x=", " y")):
        assert without_secrets(f"{before}{secret}{after}") == f"{before}***{after}"
    with pytest.raises(ValueError, match=r"x\['a'\] looks like a secret"):
        check_no_secrets("x", {"a": f"a {secret}"})


@pytest.mark.parametrize(("text", "redacted"), [
    ("OPENAI_KEY=abcdef123 run", "OPENAI_KEY=*** run"), ("DB_PASS='hunter22' x", "DB_PASS='***' x"),
    ("call(api_key=abcdef, n=3)", "call(api_key=***, n=3)"), ("--token=abcdef12", "--token=***"),
    ('{"api_key": "abc def", "n": 1}', '{"api_key": "***", "n": 1}'),
    ("{'client_secret': 'abcdefg'}", "{'client_secret': '***'}"),
    ("PASSWORD=abc,defg;x run", "PASSWORD=*** run"),
    ("A=abcdefg,DB_PASSWORD='ab cdef'", "A=abcdefg,DB_PASSWORD='***'"),
    (r'{"password":   "ab\"cdef"}', '{"password":   "***"}'),
    ("postgres://me:p4@ss@db/x", "postgres://me:***@db/x"),
    ("HF_TOKEN_2=abcdef1", "HF_TOKEN_2=***"),
    (r'{"password": "abc' + "'" + 'def"}', '{"password": "***"}'),
    (r'"{\"password\": \"abcdefg\"}"', r'"{\"password\": \"***\"}"'),
    ("Authorization: Bearer abc123def456", "Authorization: Bearer ***"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic ***"),
    ("{'Authorization': 'Bearer abc123def'}", "{'Authorization': '***'}"),
    ("X-Api-Key: abc123def", "X-Api-Key: ***"), ("postgres://me:p4ss@db/x", "postgres://me:***@db/x"),
    ("https://ghtoken1@host/x", "https://***@host/x"),
    ("/a?sig=abc%2Fdef%3D&x=1", "/a?sig=***&x=1"), ("/a?token=abcdef1&x=1", "/a?token=***&x=1"),
    ("/a?Signature=abcdefg&Expires=1", "/a?Signature=***&Expires=1"),
    ("AWS4-HMAC-SHA256 SignedHeaders=host, Signature=fe5f80f7",
    "AWS4-HMAC-SHA256 SignedHeaders=host, Signature=***"),
    (SIGNED, "https://b.example/a.jpg?X-Amz-Credential=***&X-Amz-Signature=***"),
])  # fmt: skip
def test_secret_is_known_by_the_name_before_it(text: str, redacted: str) -> None:
    assert without_secrets(text) == redacted
    assert without_secrets(redacted) == redacted


def test_cut_key_and_several_keys_are_masked() -> None:
    assert without_secrets(f"a {KEY} b {KEY}, {KEY[:70]}") == "a *** b ***, ***"


@pytest.mark.parametrize("text", [
    "token_budget=100000 max_tokens=4096 monkey=abcdefg passenger=abcdefg bypass=abcdefg",
    "eos_token='<|im_end|>'",
    "the passenger bypassed a monkey with its key and tokens; password: required", "sort_key=customer_id",
    "tokens 1,234 in, 5,678 out",
    "num_prompt_tokens: 1234567", '{"tokens": {"input": 1234567}, "slice_key": "2026-01-31"}',
    "bearer of bad news", "Authorization: required", "risk-averse-investors-2026-01-31", "sk-learn",
    "task-1234567890abcdef",
    "hf_quantizer", "hf_transformers_backend_v2", "CACHE_KEY=abcdefg PARTITION_KEY=2026-01-31",
    "token=None key=value12",
    "s3://lake/a@b/c:d", "see https://host/a?page=123456&keyword=abcdefg", "user@example.com", "a://b",
    "-----BEGIN CERTIFICATE-----",
    "2026-01-31 10:00:00 INFO ray-llm [k] answering: 1,280 of 4,000 rows",
    "sha256:9f86d081884c7d659a2feaa0c55ad015",
    "git@github.com:a/b.git", "ssh://git@github.com/a",
    "first_pass=abcdefg TEST_PASS=abcdefg keypass_count=1234567",
])  # fmt: skip
def test_ordinary_text_stays(text: str) -> None:
    assert without_secrets(text) == text
    assert not holds_secret(text)


@pytest.mark.parametrize("name", [
    "OPENAI_KEY", "openai_key", "DB_PASS", "db_pass", "SMTP_PASS", "ANTHROPIC_KEY", "FOO_KEY",
    "MY_OWN_PASS", "AZURE_OPENAI_KEY",
    "ENCRYPTION_KEY", "AIRFLOW__CORE__FERNET_KEY", "GITHUB_PAT", "STORAGE_SAS", "db_creds", "SERVICE_JWT",
    "secretKey",
])  # fmt: skip
def test_more_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [
    "token_budget", "max_tokens", "monkey", "passenger", "bypass", "BYPASS", "compass", "MONKEY",
    "TURKEY", "KEY", "PASS",
    "CACHE_KEY", "MY_SORT_KEY", "FIRST_PASS", "forward_pass", "slice_key", "primary_key", "JWKS",
    "keypass", "PATH", "hotkey",
])  # fmt: skip
def test_names_that_only_sound_like_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_key_that_is_printed_line_by_line_is_hidden_and_what_follows_is_not() -> None:
    def hidden(text: str) -> list[bool]:
        lines = KeyLines()
        return [lines.is_of_key(line) for line in text.split("\n")]

    assert hidden(f"a\n{KEY}\nb") == [False, False, True, True, True, False]
    cut = KEY.rpartition("\n")[0]
    assert hidden(f"{cut}\n@ray-llm report n 2 ab {{}}\nMIIEvQIBADANBgkqhkiG9w0BAQ") == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert hidden("MIIEvQIBADANBgkqhkiG9w0BAQ") == [False]


@pytest.mark.slow
@pytest.mark.parametrize("piece", [
    "a", "sk-", "sk-a", "hf_", "eyJ", "eyJaaaaaaaa.", "AKIA", "://", "://a:", "x=", "a=\"", "'a':'",
    "\"a\": \"", "\\\"a\\\":\\\"",
    "-----BEGIN PRIVATE KEY-----!", "-----BEGIN PRIVATE KEY-----", "bearer ", "authorization: ",
    "Authorization:Bearer ", "-", "_",
    "-----BEGIN ", "=", "ghp_", "?sig=", "\x1b[", "xoxb-1", " ", "aA_", "A-", "\\",
])  # fmt: skip
def test_time_grows_with_the_line_only(piece: str) -> None:
    text = piece * ((1 << 18) // len(piece))
    began = time.process_time()
    without_secrets(text)
    holds_secret(text)
    plain_text(text)
    assert time.process_time() - began < 3  # a tenth of it, on a machine of its own
