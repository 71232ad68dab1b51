"""Storage credentials of a connection, from a real STS on loopback."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk import DAG
from airflow.sdk.log import redact

from airflow_provider_raydatallm.exceptions import (
    RayConnectionNotFoundError,
    RayLLMInputError,
    RayLLMJobError,
)
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.submit import aws_credentials, packages
from airflow_provider_raydatallm.submit.aws_credentials import session_credentials_env
from airflow_provider_raydatallm.task.submission import uses_another_store
from tests.support.context import context_of
from tests.support.serving import serving

KEY, SECRET, TOKEN = "AKIASTATICKEYOFTEST1", "static/Secret+of+the+connection+0123456789", "token-of-its-own"
ROLE = "arn:aws:iam::123456789012:role/slices"

EnvOf = Callable[..., dict[str, str]]


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
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://ray.example.com:8265")
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    return monkeypatch


@pytest.fixture
def unmasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow takes a second to mask a session; `test_no_secret_is_logged_and_all_are_masked` takes it."""
    monkeypatch.setattr(aws_credentials, "mask", lambda secret: None)


@pytest.fixture
def env_of(monkeypatch: pytest.MonkeyPatch) -> EnvOf:
    """`session_credentials_env` of a connection with these fields and extras, by default with keys."""

    def run(
        *, conn_type: str = "aws", login: str | None = KEY, password: str | None = SECRET,
        allow_static: bool = False, session_name: str = "airflow-d-t", **extra: Any,
    ) -> dict[str, str]:  # fmt: skip
        fields = {"conn_type": conn_type, "login": login, "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))
        return session_credentials_env("lake", allow_static=allow_static, session_name=session_name)

    return run


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def credentials_in(env: Mapping[str, str]) -> list[str]:
    return [env[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")]


def last_session() -> Any:
    """The latest role session of STS."""
    from moto.sts.models import sts_backends

    return sts_backends["123456789012"]["aws"].assumed_roles[-1]


def test_a_session_is_sent_instead_of_static_keys(sts: str, env_of: EnvOf) -> None:
    env = env_of(endpoint_url=sts, region_name="eu-west-1")
    assert env.keys() == {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION",
        "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL",
    }  # fmt: skip
    assert env["AWS_SESSION_TOKEN"]
    assert (env["AWS_REGION"], env["AWS_DEFAULT_REGION"]) == ("eu-west-1", "eu-west-1")
    assert env["AWS_ENDPOINT_URL"] == sts
    assert not {KEY, SECRET} & set(env.values())


@pytest.mark.usefixtures("unmasked")
def test_role_session_has_a_name_a_duration_and_the_connections_arguments(sts: str, env_of: EnvOf) -> None:
    env = env_of(endpoint_url=sts, role_arn=ROLE, session_name="airflow-täglich/" + "x" * 80)
    assert env["AWS_ACCESS_KEY_ID"] == last_session().access_key_id
    assert env["AWS_SESSION_TOKEN"] == last_session().session_token
    assert last_session().session_name == ("airflow-t_glich_" + "x" * 80)[:64]
    assert seconds_left() == pytest.approx(3600, abs=60)
    env_of(
        endpoint_url=sts, role_arn=ROLE, assume_role_kwargs={"ExternalId": "ours", "DurationSeconds": 7200}
    )
    assert (last_session().role_arn, last_session().external_id) == (ROLE, "ours")
    assert seconds_left() == pytest.approx(7200, abs=60)


@pytest.mark.usefixtures("unmasked")
def test_role_session_has_a_policy_unless_the_connection_has_one(
    sts: str, env_of: EnvOf, worker: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def policy_of(**given: Any) -> str:
        asked.append(given)
        return '{"Version":"2012-10-17","Statement":[]}'

    def session(**extra: Any) -> Any:
        fields = {
            "conn_type": "aws",
            "login": KEY,
            "password": SECRET,
            "extra": {"endpoint_url": sts, **extra},
        }
        worker.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))
        session_credentials_env("lake", allow_static=False, policy_of=policy_of)
        return last_session()

    assert session(role_arn=ROLE).policy == '{"Version":"2012-10-17","Statement":[]}'
    session(role_arn=ROLE.replace("arn:aws:", "arn:aws-cn:"))
    session(role_arn="arn:minio:iam:::role/any-role-of-minio")
    assert [given["partition"] for given in asked] == ["aws", "aws-cn", "aws"]
    assert not any(given["kms"] for given in asked)  # the STS of AWS alone knows KMS
    own = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'
    assert session(role_arn=ROLE, assume_role_kwargs={"Policy": own}).policy == own
    session()  # of a user: STS takes no policy
    assert len(asked) == 3


def seconds_left() -> float:
    return (last_session().expiration.replace(tzinfo=dt.UTC) - dt.datetime.now(dt.UTC)).total_seconds()


@pytest.mark.usefixtures("unmasked")
def test_store_and_sts_may_have_different_addresses(sts: str, env_of: EnvOf) -> None:
    services = {"s3": {"endpoint_url": "https://store.example"}, "sts": {"endpoint_url": sts}}
    assert env_of(service_config=services)["AWS_ENDPOINT_URL"] == "https://store.example"
    assert "AWS_ENDPOINT_URL" not in env_of(service_config={"sts": {"endpoint_url": sts}})
    env = env_of(endpoint_url=unused_address(), service_config=services)
    assert env["AWS_ENDPOINT_URL"] == "https://store.example"


def test_connections_own_session_is_passed_on_without_sts(env_of: EnvOf) -> None:
    env = env_of(endpoint_url=unused_address(), aws_session_token=TOKEN)
    assert (env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]) == (KEY, SECRET)
    assert env["AWS_SESSION_TOKEN"] == TOKEN


def test_keys_may_be_in_the_extra(sts: str, env_of: EnvOf) -> None:
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    assert env_of(login=None, password=None, endpoint_url=sts, **keys)["AWS_SESSION_TOKEN"]


@pytest.mark.usefixtures("unmasked")
def test_connection_without_keys_uses_those_of_the_worker(
    sts: str, env_of: EnvOf, worker: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def without_keys(**extra: Any) -> dict[str, str]:
        return env_of(login=None, password=None, endpoint_url=sts, **extra)

    (tmp_path / "no-credentials").write_text(
        f"[other]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\naws_session_token = {TOKEN}\n"
    )
    assert without_keys(profile_name="other")["AWS_SESSION_TOKEN"] == TOKEN
    worker.setenv("AWS_ACCESS_KEY_ID", KEY)
    worker.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert not {KEY, SECRET} & set(without_keys().values())
    assert without_keys(role_arn=ROLE)["AWS_ACCESS_KEY_ID"] == last_session().access_key_id
    worker.setenv("AWS_SESSION_TOKEN", TOKEN)
    assert without_keys()["AWS_SESSION_TOKEN"] == TOKEN


@pytest.mark.usefixtures("unmasked")
def test_static_keys_are_sent_only_when_allowed_and_with_a_warning(
    sts: str, env_of: EnvOf, caplog: pytest.LogCaptureFixture
) -> None:
    env = env_of(endpoint_url=unused_address(), allow_static=True)
    # The token is empty, not absent: a node's own must not be combined with these keys.
    assert credentials_in(env) == [KEY, SECRET, ""]
    assert "the keys of connection 'lake' go to the job as they are" in caplog.text
    assert SECRET not in caplog.text
    # A role has a session: its keys need not be sent.
    env = env_of(endpoint_url=sts, role_arn=ROLE, allow_static=True)
    assert not {KEY, SECRET} & set(env.values())


@pytest.mark.parametrize(("arguments", "error"), [
    ({"conn_type": "google_cloud_platform"}, "'google_cloud_platform'.*cluster's nodes an identity"),
    ({"conn_type": ""}, "connection 'lake' is of type None"),
    ({"conn_type": "wasb"}, "connection 'lake' is of type 'wasb'.*leave storage_conn_id out"),
    ({"password": None}, r"has no secret key \(password\)"),
    ({"login": None}, r"has no access key \(login\)"),
    ({"login": None, "password": None, "aws_session_token": TOKEN}, "access key"),
    ({"login": None, "password": None}, "holds no keys, and the Airflow worker has none"),
    ({"login": None, "password": None, "profile_name": "no"}, r"profile \(no\) could not be found"),
    ({"role_arn": ROLE, "assume_role_method": "assume_role_with_saml"}, "'assume_role_with_saml'"),
    ({"service_config": "x"}, "service_config must be a JSON object"),
    ({"service_config": {"sts": "x"}}, "service_config.sts must be a JSON object"),
    ({"endpoint_url": "no address"}, "Invalid endpoint: no address"),
    ({"role_arn": ROLE, "assume_role_kwargs": {"External": "x"}}, "Unknown parameter.*External"),
])  # fmt: skip
def test_unusable_connection_is_an_error_that_says_what_to_do(
    env_of: EnvOf, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises(RayLLMInputError, match=f"^storage_conn_id: .*{error}") as e:
        env_of(**arguments)
    assert SECRET not in str(e.value)


def test_unknown_connection_is_an_error() -> None:
    with pytest.raises(RayConnectionNotFoundError, match="no connection 'nobody_made_this'"):
        session_credentials_env("nobody_made_this", allow_static=False)


def test_missing_botocore_names_the_extra(env_of: EnvOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(RayLLMInputError, match=r"Install airflow-provider-raydatallm\[s3\]"):
        env_of()


@pytest.mark.slow
def test_unreachable_sts_is_an_error_with_its_address(env_of: EnvOf, worker: pytest.MonkeyPatch) -> None:
    address = unused_address()
    with pytest.raises(RayLLMJobError) as e:
        env_of(endpoint_url=address)
    for text in (address, "'lake'", "reachable from the Airflow workers", "allow_static_credentials=True"):
        assert text in str(e.value)


def test_refusal_of_sts_is_quoted(sts: str, env_of: EnvOf) -> None:
    def allow_requests(count: str) -> None:
        """Makes moto check the keys of all requests but the next `count`."""
        httpx.post(f"{sts}/moto-api/reset-auth", content=count).raise_for_status()

    allow_requests("0")
    try:
        with pytest.raises(RayLLMInputError, match=r"'lake': InvalidClientTokenId: .") as e:
            env_of(endpoint_url=sts, role_arn=ROLE)
    finally:
        allow_requests("inf")
    assert "fix its keys or its role" in str(e.value)
    assert "allow_static_credentials" not in str(e.value)  # it would not help: a role needs STS
    assert KEY not in str(e.value)
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(("status", "answer"), [
    (405, "<Error><Code>MethodNotAllowed</Code><Message>no such API</Message></Error>"),
    (200, "<html><body>Welcome</body></html>"), (200, "Welcome"),
])  # fmt: skip
def test_store_without_sts_is_recognised(env_of: EnvOf, status: int, answer: str) -> None:
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

    with (
        serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server,
        pytest.raises(RayLLMInputError, match="gives no session") as e,
    ):
        env_of(endpoint_url=f"http://127.0.0.1:{server.server_address[1]}")
    assert "allow_static_credentials=True sends the keys as they are" in str(e.value)
    assert "name its STS in service_config.sts.endpoint_url" in str(e.value)
    assert all(b"DurationSeconds=43200" in body for body in bodies)


def test_no_secret_is_logged_and_all_are_masked(
    sts: str, env_of: EnvOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for env in (env_of(endpoint_url=sts), env_of(endpoint_url=sts, role_arn=ROLE)):
        secrets = credentials_in(env)
        assert not [s for s in secrets if s in caplog.text]
        assert redact(f"{KEY} {SECRET} {' '.join(secrets)}") == "*** *** *** *** ***"
    assert "botocore" in caplog.text  # botocore did log
    assert SECRET not in caplog.text


def operator(**arguments: Any) -> RayLLMBatchOperator:
    with DAG("d", schedule=None):
        return RayLLMBatchOperator(
            task_id="t", input_path="s3://lake/in", output_path="s3://lake/out", model_source="m",
            prompt="{a}", slice_key="k", **arguments,
        )  # fmt: skip


def submission_of(task: RayLLMBatchOperator) -> Any:
    return task._build_submission(context_of(task))


@pytest.mark.usefixtures("unmasked")
def test_session_is_in_the_jobs_environment_and_nowhere_else(sts: str, env_of: EnvOf) -> None:
    env_of(endpoint_url=sts, role_arn=ROLE)
    task = operator(storage_conn_id="{{ params.storage }}")
    task.render_template_fields({"params": {"storage": "lake"}})  # type: ignore[typeddict-item]
    submission = submission_of(task)
    key, *secrets = credentials_in(submission.lend_credentials())
    assert key == last_session().access_key_id
    assert last_session().session_name == "airflow-d-t"
    fields = json.dumps([getattr(task, name) for name in task.template_fields])
    elsewhere = submission.job.model_dump_json() + str(submission.metadata) + fields
    for secret in (KEY, SECRET, *secrets):
        assert secret not in elsewhere
    assert not [n for n in submission_of(operator()).lend_credentials() if n.startswith("AWS")]


def test_static_keys_must_be_allowed_by_a_bool() -> None:
    with pytest.raises(ValueError, match="allow_static_credentials is 'false'"):
        operator(storage_conn_id="lake", allow_static_credentials="false")


def test_credentials_also_set_by_the_runtime_env_are_refused(env_of: EnvOf) -> None:
    env_of(aws_session_token=TOKEN)
    task = operator(storage_conn_id="lake", runtime_env={"env_vars": {"AWS_SESSION_TOKEN": "x"}})
    submission = submission_of(task)
    with pytest.raises(RayLLMInputError, match=r"env_vars'\] sets 'AWS_SESSION_TOKEN'"):
        packages.merge_runtime_env(
            submission.runtime_env, py_modules=[], env_vars=submission.lend_credentials()
        )


def test_worker_does_not_look_for_the_jobs_buckets_in_another_store(
    env_of: EnvOf, worker: pytest.MonkeyPatch
) -> None:
    task = operator(storage_conn_id="lake")
    env_of(aws_session_token=TOKEN)
    assert not uses_another_store(submission_of(task))
    env_of(aws_session_token=TOKEN, endpoint_url="http://minio:9000")
    assert uses_another_store(submission_of(task))
    worker.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert not uses_another_store(submission_of(task))
