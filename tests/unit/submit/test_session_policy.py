"""The policy of a session: it opens what a slice needs, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.submit.session_policy import MAX_CHARACTERS, session_policy
from tests.support.slice_jobs import slice_job


def policy_of(runtime_env: dict[str, Any] | None = None, *, kms: bool = False, **fields: Any) -> str | None:
    folders = {"input_path": "s3://raw/in/ds={slice}/", "output_path": "s3://lake/dwh/out"}
    return session_policy(slice_job(**folders | fields), runtime_env, partition="aws", kms=kms)


def allows(policy: str | None, action: str, resource: str) -> bool:
    """As IAM decides, for policies that only allow."""
    statements = json.loads(str(policy))["Statement"]
    return any(
        action in statement["Action"]
        and any(
            re.fullmatch(_regex(pattern), f"arn:aws:s3:::{resource}", re.DOTALL)
            for pattern in statement["Resource"]
        )
        for statement in statements
    )


def _regex(pattern: str) -> str:
    parts = re.split(r"(\$\{[*?$]\}|[*?])", pattern)
    return "".join({"*": ".*", "?": "."}.get(p) or re.escape(p[2] if p[:2] == "${" else p) for p in parts)


@pytest.mark.parametrize(("key", "may"), [
    ("raw/in/ds=2026-01-31/a.csv", "read"), ("raw/in/ds=2026-02-01/a.csv", ""), ("raw/secrets", ""),
    ("lake/dwh/out/ds=2026-01-31/part-0.parquet", "write"), ("lake/dwh/out.quarantine/ds=x/a", "write"),
    ("lake/dwh/out.ray_llm/store-ok.json", "write"), ("lake/dwh/outlook/x", ""), ("lake/dwh/in/x", ""),
    ("cache/answers/ab", "write"), ("cache/other", ""), ("models/m/config.json", "read"),
    ("code/x.zip", "read"), ("elsewhere/x", ""), ("lake/dwh.ray_llm/table.json", "read"),
    ("lake/other.ray_llm/table.json", "read"), ("lake/other.ray_llm/ds=x/plans/p.json", ""),
    ("raw/in.ray_llm/table.json", ""), ("known/golden/a.csv", "read"), ("known/other.csv", ""),
    ("judges/m/config.json", "read"), ("judges/other", ""),
])  # fmt: skip
def test_session_reads_input_model_and_packages_and_writes_its_tables(key: str, may: str) -> None:
    policy = policy_of(
        {"py_modules": ["s3://code/x.zip", "gcs://y.zip"]}, engine__cache="s3://cache/answers",
        model_source="s3://models/m", engine="vllm", quality__golden={"path": "s3://known/golden/"},
        quality__judge={"model": "s3://judges/m", "prompt": "Is {answer} right?"},
    )  # fmt: skip
    assert allows(policy, "s3:GetObject", key) == (may != "")
    assert allows(policy, "s3:PutObject", key) == allows(policy, "s3:DeleteObject", key) == (may == "write")
    assert allows(policy, "s3:ListBucket", key.partition("/")[0]) == (not key.startswith("elsewhere"))


@pytest.mark.parametrize(("input_path", "key", "may"), [
    ("s3://raw/in/*.csv", "raw/in/a.csv", True), ("s3://raw/in/*.csv", "raw/other/a.csv", False),
    ("s3://raw/a.parquet", "raw/a.parquet", True), ("s3://raw/a.parquet", "raw/a.parquet.secret", False),
    ("s3://raw/in", "raw/in/a/b.csv", True), ("s3://raw/in", "raw/input/b.csv", False),
    ("s3://raw/in/*.csv", "raw/in/a.key", False), ("s3://raw/in/*.csv", "raw/in/a.csv/part", True),
    ("s3://raw/**/x.csv", "raw/x.csv", True), ("s3://raw/**/x.csv", "raw/a/b/x.csv", True),
    ("s3://raw/**/x.csv", "raw/a/y.csv", False), ("s3://raw/d?/[!]a]/x", "raw/d1/b/x", True),
    ("s3://raw/d?/[ab]/x", "raw/d1/bb/x", False), ("s3://raw/a[b/x", "raw/a[b/x", True),
    ("s3://raw", "raw/any", True), ("s3://raw/$1/", "raw/$1/a", True), ("/local/in", "raw/a", False),
])  # fmt: skip
def test_input_is_a_file_a_folder_or_what_a_glob_may_match(input_path: str, key: str, may: bool) -> None:
    assert allows(policy_of(input_path=input_path), "s3:GetObject", key) is may


@pytest.mark.parametrize("name", ["a*", "a?", "*", "a$*", "a[bc]"])
def test_what_is_no_input_has_no_patterns(name: str) -> None:
    fields = {"output_path": f"s3://lake/{name}/t", "engine__cache": f"s3://cache/{name}"}
    policy = policy_of(**fields, model_source=f"s3://models/{name}", engine="vllm")
    variable = policy_of(model_source="s3://models/${aws:username}", engine="vllm")
    assert allows(variable, "s3:GetObject", "models/${aws:username}/config.json")
    assert "${aws" not in str(variable)
    for place in ("lake/{}/t/ds=1/part", "cache/{}/x", "models/{}/config.json"):
        assert allows(policy, "s3:GetObject", place.format(name))
        for other in ("ab", "a", "abc", "b", "a$"):
            assert not allows(policy, "s3:GetObject", place.format(other))


@pytest.mark.parametrize("bucket", ["lake*", "l?ke", "*", "$lake", "la ke", "l[a]ke"])
@pytest.mark.parametrize(
    "field", ["input_path", "output_path", "engine__cache", "model_source", "publish__metadata_path"]
)
def test_bucket_that_a_policy_takes_for_a_pattern_is_refused(field: str, bucket: str) -> None:
    with pytest.raises(RayLLMInputError, match="name of a bucket"):
        policy_of(**{field: f"s3://{bucket}/x/t", "engine": "vllm"})
    with pytest.raises(RayLLMInputError, match="name of a bucket"):
        policy_of({"py_modules": [f"s3://{bucket}/x.zip"]})


def test_folders_of_metadata_and_quarantine_may_be_elsewhere_and_trials_are_beside() -> None:
    elsewhere = policy_of(publish__metadata_path="s3://meta/m", publish__quarantine_path="s3://quarantine/q")
    for key in ("meta/m/x", "quarantine/q/x", "quarantine/q.ray_llm/table.json", "lake/dwh/out.ray_llm/x"):
        assert allows(elsewhere, "s3:PutObject", key)
    assert allows(
        policy_of(source__max_rows=10), "s3:PutObject", "lake/dwh/out.trial/first-10/ds=2026-01-31/part-0"
    )
    assert not allows(policy_of(source__max_rows=10), "s3:PutObject", "lake/dwh/out/ds=2026-01-31/part-0")


def test_policy_that_is_too_long_opens_the_buckets() -> None:
    modules = [f"s3://code/{'x' * 100}/{i}.zip" for i in range(20)]
    policy = policy_of({"py_modules": modules})
    assert len(str(policy)) <= MAX_CHARACTERS
    assert allows(policy, "s3:GetObject", "code/y")
    assert allows(policy, "s3:PutObject", "lake/y")
    assert not allows(policy, "s3:PutObject", "raw/y")


def test_keys_of_kms_are_allowed_and_slices_without_buckets_have_no_policy() -> None:
    assert json.loads(str(policy_of(kms=True)))["Statement"][-1]["Action"] == [
        "kms:Decrypt",
        "kms:GenerateDataKey",
    ]
    assert policy_of(input_path="/in", output_path="/out") is None
    assert policy_of(input_path="s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/x/in") is None


def test_session_may_read_the_adapters() -> None:
    one = policy_of(adapter__path="s3://models/one")
    several = policy_of(adapter__paths={"a": "s3://models/a", "b": "/b"}, adapter__column="c")
    assert allows(one, "s3:GetObject", "models/one/adapter_config.json")
    assert not allows(one, "s3:PutObject", "models/one/adapter_config.json")
    assert allows(several, "s3:GetObject", "models/a/adapter_model.safetensors")
    assert not allows(several, "s3:GetObject", "models/one/adapter_config.json")
