"""Credentials that a connection lends, from a real STS on loopback."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import logging
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.log import redact

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.submit import packages
from airflow_provider_raydatallm.submit.aws_credentials import session_credentials_env
from airflow_provider_raydatallm.task.submission import uses_another_store

KEY, SECRET, TOKEN = "AKIASTATICKEYOFTEST1", "static/Secret+of+the+connection+0123456789", "token-of-its-own"
ROLE = "arn:aws:iam::123456789012:role/slices"

Lend = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def sts() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An Airflow worker without credentials of its own."""
    import os

    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    return monkeypatch


@pytest.fixture
def lend(monkeypatch: pytest.MonkeyPatch) -> Lend:
    """`session_env` of a connection with these fields and extras; by default it has keys of its own."""

    def run(
        *,
        conn_type: str = "aws",
        login: str | None = KEY,
        password: str | None = SECRET,
        allow_static: bool = False,
        session_name: str = "airflow-d-t",
        **extra: Any,
    ) -> dict[str, str]:
        fields = {"conn_type": conn_type, "login": login, "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))
        return session_credentials_env("lake", allow_static=allow_static, session_name=session_name)

    return run


def nowhere() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def assumed() -> Any:
    """The role session that STS gave last."""
    from moto.sts.models import sts_backends

    return sts_backends["123456789012"]["aws"].assumed_roles[-1]


def test_static_keys_stay_here_and_a_session_goes_in_their_place(sts: str, lend: Lend) -> None:
    env = lend(endpoint_url=sts, region_name="eu-west-1")
    assert env.keys() == {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION",
        "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL",
    }  # fmt: skip
    assert env["AWS_SESSION_TOKEN"]
    assert (env["AWS_REGION"], env["AWS_DEFAULT_REGION"]) == ("eu-west-1", "eu-west-1")
    assert env["AWS_ENDPOINT_URL"] == sts
    assert not {KEY, SECRET} & set(env.values())


def test_session_of_a_role_has_a_name_a_duration_and_what_the_connection_adds(sts: str, lend: Lend) -> None:
    env = lend(endpoint_url=sts, role_arn=ROLE, session_name="airflow-täglich/" + "x" * 80)
    assert env["AWS_ACCESS_KEY_ID"] == assumed().access_key_id
    assert env["AWS_SESSION_TOKEN"] == assumed().session_token
    assert assumed().session_name == ("airflow-t_glich_" + "x" * 80)[:64]
    assert lasts() == pytest.approx(3600, abs=60)
    lend(endpoint_url=sts, role_arn=ROLE, assume_role_kwargs={"ExternalId": "ours", "DurationSeconds": 7200})
    assert (assumed().role_arn, assumed().external_id) == (ROLE, "ours")
    assert lasts() == pytest.approx(7200, abs=60)


def lasts() -> float:
    return (assumed().expiration.replace(tzinfo=dt.UTC) - dt.datetime.now(dt.UTC)).total_seconds()


def test_store_and_sts_may_have_addresses_of_their_own(sts: str, lend: Lend) -> None:
    services = {"s3": {"endpoint_url": "https://store.example"}, "sts": {"endpoint_url": sts}}
    assert lend(service_config=services)["AWS_ENDPOINT_URL"] == "https://store.example"
    assert "AWS_ENDPOINT_URL" not in lend(service_config={"sts": {"endpoint_url": sts}})
    assert (
        lend(endpoint_url=nowhere(), service_config=services)["AWS_ENDPOINT_URL"] == "https://store.example"
    )


def test_session_of_the_connection_is_passed_on_and_sts_is_not_asked(lend: Lend) -> None:
    env = lend(endpoint_url=nowhere(), aws_session_token=TOKEN)
    assert (env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]) == (KEY, SECRET)
    assert env["AWS_SESSION_TOKEN"] == TOKEN


def test_keys_may_stand_in_the_extra(sts: str, lend: Lend) -> None:
    given = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    assert lend(login=None, password=None, endpoint_url=sts, **given)["AWS_SESSION_TOKEN"]


def test_connection_without_keys_uses_those_of_the_worker(
    sts: str, lend: Lend, worker: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def bare(**extra: Any) -> dict[str, str]:
        return lend(login=None, password=None, endpoint_url=sts, **extra)

    (tmp_path / "no-credentials").write_text(
        f"[other]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\naws_session_token = {TOKEN}\n"
    )
    assert bare(profile_name="other")["AWS_SESSION_TOKEN"] == TOKEN
    worker.setenv("AWS_ACCESS_KEY_ID", KEY)
    worker.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert not {KEY, SECRET} & set(bare().values())
    assert bare(role_arn=ROLE)["AWS_ACCESS_KEY_ID"] == assumed().access_key_id
    worker.setenv("AWS_SESSION_TOKEN", TOKEN)
    assert bare()["AWS_SESSION_TOKEN"] == TOKEN


def test_static_keys_are_sent_only_when_asked_for_and_never_silently(
    sts: str, lend: Lend, caplog: pytest.LogCaptureFixture
) -> None:
    env = lend(endpoint_url=nowhere(), allow_static=True)
    # An empty token: a node's own would be taken for that of these keys.
    assert [env[f"AWS_{n}"] for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")] == [
        KEY, SECRET, "",
    ]  # fmt: skip
    assert "the keys of connection 'lake' go to the job as they are" in caplog.text
    assert SECRET not in caplog.text
    # A role's session is there to be had: its keys are not needed.
    env = lend(endpoint_url=sts, role_arn=ROLE, allow_static=True)
    assert not {KEY, SECRET} & set(env.values())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"conn_type": "google_cloud_platform"}, "'google_cloud_platform'.*cluster's nodes an identity"),
        ({"conn_type": "wasb"}, "connection 'lake' is of type 'wasb'.*leave storage_conn_id out"),
        ({"password": None}, r"has no secret key \(password\)"),
        ({"login": None}, r"has no access key \(login\)"),
        ({"login": None, "password": None, "aws_session_token": TOKEN}, "give both keys, or neither"),
        ({"login": None, "password": None}, "holds no keys, and the Airflow worker finds none"),
        ({"login": None, "password": None, "profile_name": "no"}, r"profile \(no\) could not be found"),
        ({"role_arn": ROLE, "assume_role_method": "assume_role_with_saml"}, "'assume_role_with_saml'"),
        ({"service_config": "x"}, "service_config must be a JSON object"),
        ({"service_config": {"sts": "x"}}, "service_config.sts must be a JSON object"),
        ({"endpoint_url": "no address"}, "Invalid endpoint: no address"),
        ({"role_arn": ROLE, "assume_role_kwargs": {"External": "x"}}, "Unknown parameter.*External"),
    ],
)
def test_connection_that_cannot_lend_says_why_and_what_to_do(
    lend: Lend, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(RayLLMInputError, match=f"^storage_conn_id: .*{says}") as e:
        lend(**given)
    assert SECRET not in str(e.value)


def test_unknown_connection_is_an_error_and_never_the_clusters_identity() -> None:
    with pytest.raises(RayLLMInputError, match="no connection 'nobody_made_this'"):
        session_credentials_env("nobody_made_this", allow_static=False)


def test_missing_botocore_names_the_extra(lend: Lend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(RayLLMInputError, match=r"install airflow-provider-raydatallm\[s3\]"):
        lend()


def test_sts_that_is_away_is_named(lend: Lend, worker: pytest.MonkeyPatch) -> None:
    address = nowhere()
    with pytest.raises(RayLLMJobError) as e:
        lend(endpoint_url=address)
    for said in (address, "'lake'", "reachable from the Airflow workers", "allow_static_credentials=True"):
        assert said in str(e.value)


def test_sts_that_refuses_is_quoted(sts: str, lend: Lend) -> None:
    def authenticate(first_requests_free: str) -> None:
        urllib.request.urlopen(
            urllib.request.Request(
                f"{sts}/moto-api/reset-auth",
                first_requests_free.encode(),
                {"Content-Type": "text/plain"},
            )
        ).close()

    authenticate("0")
    try:
        with pytest.raises(RayLLMInputError, match=r"'lake': InvalidClientTokenId: .") as e:
            lend(endpoint_url=sts, role_arn=ROLE)
    finally:
        authenticate("inf")
    assert "mend its keys or its role" in str(e.value)
    assert "allow_static_credentials" not in str(e.value)  # it would not help: the role is what is asked for
    assert KEY not in str(e.value)
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (405, "<Error><Code>MethodNotAllowed</Code><Message>no such API</Message></Error>"),
        (200, "<html><body>Welcome</body></html>"),
        (200, "Welcome"),
    ],
)
def test_store_without_sts_is_told_from_one_that_has_it(lend: Lend, status: int, answer: str) -> None:
    asked: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(RayLLMInputError, match="gives no session") as e:
            lend(endpoint_url=f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
    assert "allow_static_credentials=True sends the keys as they are" in str(e.value)
    assert "name its STS in service_config.sts.endpoint_url" in str(e.value)
    assert all(b"DurationSeconds=43200" in body for body in asked)


def test_nothing_is_logged_and_all_is_masked(sts: str, lend: Lend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for env in (lend(endpoint_url=sts), lend(endpoint_url=sts, role_arn=ROLE)):
        secrets = [env[f"AWS_{n}"] for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")]
        assert not [s for s in secrets if s in caplog.text]
        assert redact(f"{KEY} {SECRET} {' '.join(secrets)}") == "*** *** *** *** ***"
    assert "botocore" in caplog.text  # it did log
    assert SECRET not in caplog.text


def operator(**given: Any) -> RayLLMBatchOperator:
    with DAG("d", schedule=None):
        return RayLLMBatchOperator(
            task_id="t", input_path="s3://lake/in", output_path="s3://lake/out", model_source="m",
            prompt="{a}", slice_key="k", **given,
        )  # fmt: skip


def shipment(made: RayLLMBatchOperator) -> Any:
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)
    context: Any = {"dag": made.dag, "dag_run": SimpleNamespace(run_type="manual"), "params": {}, "ti": ti}
    return made._build_submission(context)


def test_operator_gives_the_job_a_session_and_puts_it_nowhere_else(sts: str, lend: Lend) -> None:
    lend(endpoint_url=sts, role_arn=ROLE)
    made = operator(storage_conn_id="{{ params.storage }}")
    made.render_template_fields({"params": {"storage": "lake"}})  # type: ignore[typeddict-item]
    sent = shipment(made)
    assert sent.env_vars["AWS_ACCESS_KEY_ID"] == assumed().access_key_id
    assert assumed().session_name == "airflow-d-t"
    elsewhere = (
        sent.job.model_dump_json()
        + str(sent.metadata)
        + json.dumps([getattr(made, name) for name in made.template_fields])
    )
    for secret in (KEY, SECRET, *(sent.env_vars[f"AWS_{n}"] for n in ("SECRET_ACCESS_KEY", "SESSION_TOKEN"))):
        assert secret not in elsewhere
    assert not [n for n in shipment(operator()).env_vars if n.startswith("AWS")]


def test_static_keys_must_be_allowed_by_a_bool() -> None:
    with pytest.raises(ValueError, match="allow_static_credentials is 'false'"):
        operator(storage_conn_id="lake", allow_static_credentials="false")


def test_credentials_given_twice_are_refused(lend: Lend) -> None:
    lend(aws_session_token=TOKEN)
    sent = shipment(operator(storage_conn_id="lake", runtime_env={"env_vars": {"AWS_SESSION_TOKEN": "x"}}))
    with pytest.raises(RayLLMInputError, match=r"env_vars'\] sets 'AWS_SESSION_TOKEN'.*leave it out"):
        packages.merged_runtime_env(sent.runtime_env, py_modules=[], env_vars=sent.env_vars)


def test_worker_does_not_look_for_the_jobs_buckets_in_another_store(
    lend: Lend, worker: pytest.MonkeyPatch
) -> None:
    def elsewhere() -> bool:
        return uses_another_store(shipment(made))

    made = operator(storage_conn_id="lake")
    lend(aws_session_token=TOKEN)
    assert not elsewhere()
    lend(aws_session_token=TOKEN, endpoint_url="http://minio:9000")
    assert elsewhere()
    worker.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert not elsewhere()
