"""A job that reaches its storage by what a connection lends it, and where those credentials are to be seen.

The store (moto) checks signatures and policies; the role has the policy that the docs give, so that what they
call enough is enough.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import botocore.session
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.submit.session_policy import session_policy
from tests.support.paths import ROOT
from tests.support.s3 import moto_server
from tests.support.slices import STUB, Ask


@dataclass
class Lake:
    """An S3 with STS and IAM on loopback, and a bucket `lake` that keeps every version of every object."""

    address: str
    #: Of a user who may take the role, and nothing else.
    key: str = ""
    secret: str = ""
    role: str = ""

    def client(self, service: str) -> Any:
        return botocore.session.Session().create_client(
            service, region_name="us-east-1", endpoint_url=self.address,
            aws_access_key_id="admin", aws_secret_access_key="admin",
        )  # fmt: skip

    def check_everyone(self, check: bool) -> None:
        """Until then the server takes every request for its administrator's."""
        body = b"0" if check else b"inf"
        url = f"{self.address}/moto-api/reset-auth"
        urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "text/plain"})).close()

    def all_ever_written(self) -> Iterator[tuple[str, bytes]]:
        """Every object there is and was: the job removes its checkpoint when it has published."""
        s3 = self.client("s3")
        for page in s3.get_paginator("list_object_versions").paginate(Bucket="lake"):
            for found in page.get("Versions", []):
                got = s3.get_object(Bucket="lake", Key=found["Key"], VersionId=found["VersionId"])
                yield found["Key"], repr(got["Metadata"]).encode() + got["Body"].read()


@pytest.fixture
def lake() -> Iterator[Lake]:
    with moto_server() as address:
        yield furnished(Lake(address))


def furnished(lake: Lake) -> Lake:
    s3, iam = lake.client("s3"), lake.client("iam")
    s3.create_bucket(Bucket="lake")
    s3.put_bucket_versioning(Bucket="lake", VersioningConfiguration={"Status": "Enabled"})
    user = iam.create_user(UserName="airflow")["User"]["Arn"]
    key = iam.create_access_key(UserName="airflow")["AccessKey"]
    lake.key, lake.secret = key["AccessKeyId"], key["SecretAccessKey"]
    takes = {"Effect": "Allow", "Action": "sts:AssumeRole"}
    trust = {"Version": "2012-10-17", "Statement": [{**takes, "Principal": {"AWS": user}}]}
    role = iam.create_role(RoleName="slices", AssumeRolePolicyDocument=json.dumps(trust))["Role"]
    lake.role = role["Arn"]
    may_take = {"Version": "2012-10-17", "Statement": [{**takes, "Resource": lake.role}]}
    iam.put_user_policy(UserName="airflow", PolicyName="take", PolicyDocument=json.dumps(may_take))
    (policy,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "storage.md").read_text(), re.DOTALL)
    assert json.loads(policy)["Statement"][0]["Resource"] == "arn:aws:s3:::lake"
    iam.put_role_policy(RoleName="slices", PolicyName="lake", PolicyDocument=policy)
    return lake


def test_lent_credentials_are_a_sessions_and_stand_in_the_jobs_environment_only(
    ask: Ask, ray_head: LocalHead, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rows = "\n".join(f"n{i}" for i in range(500))
    lake.client("s3").put_object(Bucket="lake", Key="in/ds=2026-01-31/a.csv", Body=f"name\n{rows}\n".encode())
    lake.check_everyone(True)
    connection = {
        "conn_type": "aws", "login": lake.key, "password": lake.secret,
        "extra": {"endpoint_url": lake.address, "region_name": "us-east-1", "role_arn": lake.role},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    caplog.set_level(logging.INFO)

    result = ask(
        input_path="s3://lake/in/ds={slice}/", output_path="s3://lake/out", storage_conn_id="lake",
        engine__batch_size=100, **STUB,
    )  # fmt: skip

    assert (result["outcome"], result["counts"]["succeeded"]) == ("published", 500)
    task_log = caplog.text + "".join(capfd.readouterr())
    assert f"Submitted Ray job {result['ray_job_id']}" in task_log
    hook = RayHook("ray_default")
    with hook.get_conn() as jobs:
        info = jobs.get(f"/api/jobs/{result['ray_job_id']}").json()
        driver_log = jobs.get(f"/api/jobs/{result['ray_job_id']}/logs").json()["logs"]

    # What Ray shows to holders of its token: a session, which ends by itself.
    shown = info["runtime_env"]["env_vars"]
    session = [shown[f"AWS_{n}"] for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")]
    static = [lake.key, lake.secret]
    assert session[0].startswith("ASIA")
    assert all(len(s) >= 16 for s in [*static, *session])
    assert not [s for s in static if s in json.dumps(info)]
    # Anywhere else there is neither.
    lake.check_everyone(False)
    written = dict(lake.all_ever_written())
    for word in ("/plans/", "/checkpoint/", "/lease/", "/commits/", "/reports/", "/staged/", "/part-"):
        assert any(word in name for name in written), word
    specs = list(ray_head.folder.rglob("ray_llm_spec_*/spec.json"))
    assert specs
    places = {
        "the job's info": json.dumps({k: v for k, v in info.items() if k != "runtime_env"}),
        "its entrypoint and metadata": f"{info['entrypoint']} {info['metadata']}",
        "the rest of its runtime_env": json.dumps(
            {k: v for k, v in info["runtime_env"].items() if k != "env_vars"}
        ),
        "the driver's log": driver_log, "the task log": task_log, "XCom": json.dumps(result),
        **{f"the spec {path}": path.read_text() for path in specs},
        **{f"s3://lake/{name}": content.decode("latin-1") for name, content in written.items()},
    }  # fmt: skip
    assert not [(place, s) for place, text in places.items() for s in [*static, *session] if s in text]
    # What the job reads, writes and logs is on the head's disk: of the connection's own keys, nothing.
    for path in ray_head.folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            assert not [s for s in static if s.encode() in content], path

    # Specs of other tests may lie there, too.
    spec = next(text for text in (path.read_text() for path in specs) if "s3://lake/out" in text)
    # The session's policy names all that the job wrote, and the store's STS took it.
    policy = session_policy(SliceJob.model_validate_json(spec), None, partition="aws", kms=False)
    statements = {s["Action"][-1]: s["Resource"] for s in json.loads(str(policy))["Statement"]}
    may_write = statements["s3:AbortMultipartUpload"]
    assert not any(fnmatchcase("arn:aws:s3:::lake/in/ds=2026-01-31/a.csv", r) for r in may_write)
    for name in written.keys() - {"in/ds=2026-01-31/a.csv"}:
        assert any(fnmatchcase(f"arn:aws:s3:::lake/{name}", r) for r in may_write), name

    [part] = [name for name in written if name.startswith("out/ds=2026-01-31/part-")]
    (tmp_path / "out.parquet").write_bytes(
        lake.client("s3").get_object(Bucket="lake", Key=part)["Body"].read()
    )
    answers = pq.read_table(tmp_path / "out.parquet").column("answer").to_pylist()
    assert answers == [f"Who is n{i}?" for i in range(500)]


def test_role_that_is_not_given_stops_the_task_before_anything_is_sent(
    ask: Ask, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.check_everyone(True)
    extra = {"endpoint_url": lake.address, "role_arn": f"{lake.role}-of-others"}
    connection = {"conn_type": "aws", "login": lake.key, "password": lake.secret, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    with pytest.raises(
        RayLLMInputError, match=r"connection 'lake': AccessDenied: .*fix its keys or its role"
    ):
        ask(input_path="s3://lake/in", output_path="s3://lake/out", storage_conn_id="lake", **STUB)


#: Code of a user that prints all that it can: here, in a worker, in an error.
LEAKY = """
import base64, os, urllib.parse

def tell(row):
    token = os.environ["HF_TOKEN"]
    print("plain", token, "base64", base64.b64encode(f"me:{token}".encode()).decode(), flush=True)
    print("percent", urllib.parse.quote(token, safe=""), flush=True)
    return {"size": len(row["answer"])}
"""


def test_what_a_job_prints_of_its_credentials_is_redacted_for_whoever_reads_its_log(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a resumed try or a triggerer, which never knew them: the job's own log has none."""
    token = "hub/sesame+of=the/connection"
    monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps({"conn_type": "generic", "password": token}))
    (tmp_path / "leaky.py").write_text(LEAKY)
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in.parquet")
    stub = {**STUB, "code_paths": [*STUB["code_paths"], str(tmp_path / "leaky.py")]}  # type: ignore[misc]
    result = ask(
        input_path=f"{tmp_path}/in.parquet", model_conn_id="hub", postprocess="leaky:tell", **stub
    )  # fmt: skip
    assert result["counts"]["succeeded"] == 2
    with RayHook("ray_default").get_conn() as jobs:
        driver_log = jobs.get(f"/api/jobs/{result['ray_job_id']}/logs").json()["logs"]
    assert "plain *** base64 bWU6" in driver_log
    assert "percent ***" in driver_log
    for text in (token, quote(token, safe=""), base64.b64encode(f"me:{token}".encode()).decode()[8:]):
        assert text not in driver_log
