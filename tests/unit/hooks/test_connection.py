"""Parsing and masking a connection of type `ray`."""

from __future__ import annotations

import base64
import json
import traceback
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from airflow.sdk import Connection
from airflow.sdk.log import redact

from airflow_provider_raydatallm.clusters.base import Access, Gateway
from airflow_provider_raydatallm.exceptions import RayConnectionError
from airflow_provider_raydatallm.hooks.connection import RaySettings
from tests.support.ray_connections import connection, settings_of, with_extra


@pytest.mark.parametrize(("given", "address"), [
    ({"host": "http://h:8265/"}, "http://h:8265"), ({"host": " https://h/ray "}, "https://h/ray"),
    ({"host": "h", "port": 8265}, "http://h:8265"),
    ({"host": "https://h/ray", "port": 8443}, "https://h:8443/ray"),
    ({"host": "http://[::1]", "port": 8265}, "http://[::1]:8265"),
    ({"host": "[::1]:8265"}, "http://[::1]:8265"), ({"host": "::1", "port": 8265}, "http://[::1]:8265"),
    ({"host": "https://fd00::12", "port": 443}, "https://[fd00::12]:443"),
    ({"host": "fe80::1%eth0", "port": 8265}, "http://[fe80::1%eth0]:8265"),
    ({"host": "h", "schema": "https"}, "https://h"), ({"host": "local"}, "local"),
])  # fmt: skip
def test_address_forms(given: dict[str, Any], address: str) -> None:
    assert settings_of(**given).address == address


@pytest.mark.parametrize(
    ("given", "field", "value", "instead"),
    [
        ({"host": None}, "host", "", "http://ray-head:8265"),
        ({"host": "ray://head:10001"}, "host", "ray://head:10001", "http://head:8265"),
        ({"host": "head", "schema": "ray"}, "host", "head", "http://head:8265"),
        ({"host": "ray://[::1]:10001"}, "host", "ray://[::1]:10001", "http://[::1]:8265"),
        ({"host": "ray://[x"}, "host", "ray://[x", "http://ray-head:8265"),
        ({"host": "http://[x"}, "host", "http://[x", "http://HOST:8265"),
        ({"host": "ftp://x"}, "host", "ftp://x", "http://HOST:8265"),
        ({"host": "http://"}, "host", "http:", "http://HOST:8265"),
        ({"host": "my head"}, "host", "my head", "http://HOST:8265"),
        ({"host": "http://h:eight"}, "host", "eight", "http://HOST:8265"),
        ({"host": "http://h:99999"}, "host", "h:99999", "http://HOST:8265"),
        ({"host": "http://h:8265/#/jobs"}, "host", "http://h:8265", "without what follows"),
        ({"port": 99999}, "port", "99999", "8265"),
        ({"port": "x"}, "port", "'x'", "8265"),
        ({"conn_type": "http"}, "type", "'http'", "Write 'ray'"),
        ({"extra": "verify=false"}, "extra", "", "JSON object"),
        ({"extra": "[1]"}, "extra", "list", "JSON object"),
        (with_extra(verfy=False), "extra", "'verfy'", "verify"),
        (with_extra(verify="no"), "verify", "'no'", "true or false"),
        (with_extra(verify=0), "verify", "0", "true or false"),
        (with_extra(headers="x"), "headers", "str", "JSON object"),
        (with_extra(headers={"X-Count": 1}), "headers", "X-Count", "in quotes"),
        (with_extra(headers={"X Y": "a"}), "headers", "'X Y'", "letters"),
        (with_extra(headers={"X": "a\nb"}), "headers", "'X'", "line breaks"),
        (with_extra(ca_file="ca.pem"), "ca_file", "", "absolute path"),
        (with_extra(ca_file=1), "ca_file", "int", "text"),
        (with_extra(client_key="/key.pem"), "client_key", "", "certificate"),
        (with_extra(driver_resources=[1]), "driver_resources", "", "JSON object"),
        (with_extra(driver_resources={"gpu": 1}), "driver_resources", "'gpu'", "num_cpus, memory"),
        (with_extra(driver_resources={"memory": "1G"}), "driver_resources", "'1G'", "bytes"),
        (with_extra(driver_resources={"resources": 1}), "driver_resources", "1", "object of numbers"),
        (with_extra(driver_resources={"label_selector": {"a": 1}}), "driver_resources", "", "texts"),
        (with_extra(proxy="squid:3128"), "proxy", "'squid:3128'", "'http://squid:3128'"),
        (with_extra(proxy="socks5://squid:3128"), "proxy", "socks5://squid:3128", "http://HOST:PORT"),
        (with_extra(dashboard_url="javascript:alert(1)"), "dashboard_url", "javascript", "http://HOST:PORT"),
        ({"password": "Bearer abc"}, "password", "", "without 'Bearer'"),
        ({"password": "a", **with_extra(auth_file="/x")}, "auth_file", "", "Keep one"),
    ],
)
def test_error_names_connection_field_and_value_and_what_to_write(
    given: dict[str, Any], field: str, value: str, instead: str
) -> None:
    with pytest.raises(RayConnectionError) as e:
        settings_of(**given)
    assert "connection 'c'" in str(e.value)
    for part in (field, value, instead):
        assert part in str(e.value)


S = "s3kr1t"


@pytest.mark.parametrize("given", [
    {"host": f"http://me:{S}@h:8265"}, {"host": f"ray://me:{S}@h:10001"}, {"host": f"ftp://me:{S}@h"},
    {"host": f"http://me:{S}@h:x"}, {"host": f"http://h:8265/?token={S}"}, {"password": f"Bearer {S}"},
    {"extra": f'{{"headers": "{S}'}, {"extra": f'"{S}"'}, with_extra(headers=[S]),
    with_extra(headers={"X": {"a": S}}), with_extra(headers={"X": S + "\n\u00e9"}),
    with_extra(proxy=f"me:{S}@squid:3128"), with_extra(proxy=f"http://me:{S}@squid:x"),
    with_extra(proxy=f"socks5://me:{S}@squid:1"), with_extra(proxy={"url": S}),
    with_extra(dashboard_url=f"http://me:{S}@h"), with_extra(auth_file=S),
    with_extra(client_cert="/c.pem", client_key=S), with_extra(conf={"a": [{"b": S}]}),
])  # fmt: skip
def test_error_shows_no_secret(given: dict[str, Any]) -> None:
    with pytest.raises(RayConnectionError) as e:
        settings_of(**given)
    assert S not in "".join(traceback.format_exception(e.value))


def test_secrets_are_not_shown() -> None:
    settings = RaySettings.from_connection(
        connection(
            password="sesame", **with_extra(headers={"X-Key": "s3cret"}, proxy="http://me:pr0xy@squid:3128")
        )
    )
    assert settings.token == "sesame"
    for secret in ("sesame", "s3cret", "pr0xy"):
        assert secret not in repr(settings)


def test_of_clusters_that_come_and_go_the_masker_learns_nothing() -> None:
    """It takes longer with each, in a triggerer that lives for months."""
    settings = settings_of(host="http://h")
    access = Access("http://h", "one-of-thousands", Gateway({"Authorization": "Bearer of-gateway"}))
    settings.for_cluster(replace(access, is_passing=True))
    assert redact("<one-of-thousands> <of-gateway>") == "<one-of-thousands> <of-gateway>"
    settings.for_cluster(access)
    assert redact("<one-of-thousands>") == "<***>"


@pytest.mark.slow
def test_secrets_are_masked_at_any_depth_and_in_every_form() -> None:
    deep: Any = "deep/secret one"
    for _ in range(50):
        deep = [{"a": deep}]
    with pytest.raises(RayConnectionError, match="unknown extra 'conf'"):
        RaySettings.from_connection(
            connection(
                password="pass'w\u00f6rd",
                **with_extra(
                    conf=deep,
                    text=json.dumps({"inner": "inner-secret"}),
                    headers={"Authorization": "Bearer bearer-secret", "X": "Basic bWU6YmFzaWMtc2VjcmV0"},
                    proxy="http://proxy-user:proxy%40secret@squid:3128",
                ),
            )
        )
    for shown in (
        "pass'w\u00f6rd", json.dumps("pass'w\u00f6rd"), quote("pass'w\u00f6rd"), "deep/secret one",
        quote("deep/secret one"), quote_plus("deep/secret one"), "inner-secret", "bearer-secret",
        "basic-secret", "proxy-user", "proxy@secret", "proxy%40secret",
    ):  # fmt: skip
        assert redact(f"<{shown}>") in ("<***>", '<"***">'), shown
    for secret in (b"basic-secret", b"proxy@secret"):
        redacted = str(redact(base64.b64encode(b"user:" + secret).decode()))
        assert base64.b64encode(b"user:" + secret).decode()[7:] not in redacted
        assert "***" in redacted


@pytest.mark.slow
@pytest.mark.parametrize("given", [
    {"host": "https://h/ray", "port": 8443, "password": "t@k/:x", **with_extra(verify=False)},
    {"host": "http://h:8265", **with_extra(headers={"A": "b"}, proxy="http://u:p@x:1")},
    {"host": "h", "port": 8265, "schema": "https", **with_extra(ca_file="/x", verify="true")},
    {"host": "local"},
])  # fmt: skip
def test_connection_survives_being_written_as_a_uri(given: dict[str, Any]) -> None:
    """As which Airflow hands a connection to a test of it."""
    made = connection(**given)
    assert RaySettings.from_connection(
        Connection.from_uri(made.get_uri(), conn_id="c")
    ) == RaySettings.from_connection(made)
