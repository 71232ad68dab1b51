"""The cluster sends requests to addresses: only known schemes are accepted, and none with a secret."""

from __future__ import annotations

import re
from pathlib import Path

import pydantic
import pytest

from airflow_provider_raydatallm.contract import addresses
from airflow_provider_raydatallm.contract.addresses import (
    EXTRA_SCHEMES,
    ancestors,
    canonical,
    check_address,
    holds,
)
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.leaves import LEAVES
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.task.submission import build_spec
from tests.support.slice_jobs import slice_job

SECRETS = [
    "s3://KEY:SECRET@bucket/x", "s3://KEY:SEC/RET@bucket/x", "s3://KEY@bucket", "gs://u:SECRET@b/x",
    "abfs://container:SECRET@account/x", "http://u:SECRET@host/x", "simplecache::s3://K:SECRET@b",
    "https://host/x?token=SECRET",
]  # fmt: skip


@pytest.mark.parametrize(
    "address",
    [
        "/data/in", "in/x", "file:///data/in", "s3://lake/a@b/c:d", "s3a://lake/x", "gs://b/x", "az://c/x",
        "abfss://container@account.dfs.core.windows.net/x", "s3://arn:aws:s3:eu-west-1:1:accesspoint/a/x",
        "/data/a:b@c", "s3://lake/a?b*[c]", "gs://lake/c#", "/data/a#1?versionId=2",
    ],
)  # fmt: skip
def test_paths_and_known_schemes_are_accepted(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://host/x", "begin with http:// are not accepted, but paths and file://, s3://"),
        ("https://host/x", "begin with https://"),
        ("memory://x", "begin with memory://.*RAY_LLM_ALLOWED_SCHEMES adds others"),
        ("S3://lake/x", "begin with S3://"),
        ("simplecache::s3://lake/x", "chained addresses"),
        ("/a::b", "chained addresses"),
        ("zip://x::http://host/x.zip", "chained addresses"),
        ("data:,hello", "data: are not accepted"),
        ("/lake/a\0b", "NUL character"),
        ("s3://lake/a\0b", "NUL character"),
        ("s3://lake/a?versionId=1/b", "names a version of an object"),
        ("az://lake/a?versionid=1", "names a version of an object"),
        ("gs://lake/a#1", "names a version of an object"),
        ("gs://lake/a?x&generation=1", "names a version of an object"),
    ],
)
def test_others_are_refused_before_anything_is_sent(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_address(address)
    with pytest.raises(SliceError, match=why) as e:
        open_fs(address)
    assert e.value.kind == "input"
    for field in ("input_path", "output_path"):
        with pytest.raises(pydantic.ValidationError, match=why):
            slice_job(**{field: address})


@pytest.mark.parametrize("address", SECRETS)
def test_address_with_a_secret_is_refused_and_not_repeated(address: str) -> None:
    fields = {"slice_key": "k", "output_path": "/o", "model_source": "m", "prompt": "{x}"}
    for refuse in (
        lambda: check_address(address),
        lambda: open_fs(address),
        lambda: slice_job(input_path=address),
        lambda: build_spec("t", {**fields, "input_path": address}),
    ):
        with pytest.raises((ValueError, SliceError, RayLLMInputError)) as e:
            refuse()
        assert not re.search("SECRET|SEC/RET|KEY", str(e.value))


@pytest.mark.parametrize(
    "fields",
    [
        {"output_path": f"/lake/{'x' * 256}"},
        {"output_path": f"/lake/{'x' * 250}"},  # its quarantine has a longer name
        {"output_path": "/lake/table", "slice_key": "ä" * 50},
        {"publish__metadata_path": f"file:///lake/{'x' * 256}"},
    ],
)
def test_name_that_no_disk_has_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(pydantic.ValidationError, match="at most 255"):
        slice_job(**fields)
    assert slice_job(output_path=f"s3://lake/{'x' * 300}")


ADDRESSES = {path: leaf for path, leaf in LEAVES.items() if leaf.declared.is_address}


@pytest.mark.parametrize("path", ADDRESSES)
def test_every_argument_that_is_an_address_is_checked(path: str) -> None:
    address = "s3://KEY:SECRET@bucket/x"
    is_dict = ADDRESSES[path].field.annotation == dict[str, str]
    value = {"a": address} if is_dict else {"path": address} if path == "quality.golden" else address
    others = {"adapter__column": "tenant"} if path == "adapter.paths" else {}
    with pytest.raises(pydantic.ValidationError, match="a user name or a password") as e:
        slice_job(**{path.replace(".", "__"): value, **others})
    assert not re.search("SECRET|KEY", f"{e.value} {describe_problems(e.value)}")


def test_setting_adds_schemes_here_and_in_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses.environment() == {}
    monkeypatch.setenv(EXTRA_SCHEMES, "memory, hdfs")
    assert check_address("hdfs://host:8020/x") == "hdfs://host:8020/x"
    with pytest.raises(ValueError, match="a user name or a password"):
        check_address("hdfs://user@host/x")
    assert open_fs("memory://x")[1] == "/x"
    assert addresses.environment() == {EXTRA_SCHEMES: "memory,hdfs"}


@pytest.mark.parametrize(
    ("addresses", "same"),
    [
        (("/lake/in", "/lake/in/", "/lake//in", "/lake/./in", "file:///lake/in/", "file:/lake/in"), True),
        (("s3://lake/in", "s3://lake/in/", "s3a://lake/in", "s3:///lake/in"), True),
        (("gs://lake/in", "gcs://lake/in"), True),
        (("abfs://c/x", "az://c/x", "abfss://c/x/"), True),
        (("abfss://c@a.dfs.core.windows.net/x", "abfs://c@a.blob.core.windows.net/x", "az://c@a/x"), True),
        (("s3://lake/a/b", "s3://lake/a//b", "s3://lake//a/b"), False),
        (("s3://lake/in", "gs://lake/in", "/lake/in", "s3://lake/In"), False),
        (("abfs://c@one/x", "abfs://c@two/x"), False),
    ],
)
def test_address_has_one_form_however_it_is_written(addresses: tuple[str, ...], same: bool) -> None:
    forms = {canonical(address) for address in addresses}
    assert len(forms) == (1 if same else len(addresses))
    assert {canonical(form) for form in forms} == forms


def test_relative_path_is_the_one_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert canonical("in/x") == canonical(f"{tmp_path}/in//x") == f"{tmp_path}/in/x"


def test_folder_holds_what_lies_below_it_and_nothing_that_begins_like_it() -> None:
    assert all(holds(folder, "/a/b") for folder in ("/a/b", "/a", "/"))
    assert not holds("/a", "/ab")
    assert holds("s3://lake", "s3://lake/x")
    assert not holds("s3://lake", "s3://lake2/x")


def test_ancestors_end_with_the_root_of_the_bucket_or_disk() -> None:
    assert list(ancestors("/a/b")) == ["/a/b", "/a", "/"]
    assert list(ancestors("s3://lake/a/b")) == ["s3://lake/a/b", "s3://lake/a", "s3://lake"]
    assert list(ancestors("/")) == ["/"]
