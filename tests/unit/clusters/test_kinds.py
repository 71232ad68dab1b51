"""How a cluster is opened from a record or a connection, without a call to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raydatallm.clusters.base import Access, Identity
from airflow_provider_raydatallm.clusters.embedded.folder import FOLDER_VARIABLE
from airflow_provider_raydatallm.clusters.kinds import KINDS, meant_by, open_cluster
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of this machine's embedded head, which does not run."""
    folder = tmp_path / "head"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    monkeypatch.setenv("AIRFLOW_CONN_C", "ray://local")
    return folder


@pytest.mark.parametrize("identity", [
    Identity("connection", "c"), Identity("embedded", "c", "0f"),
    Identity("kuberay", "team:a/b-1.c#", "x@y:z"), Identity("connection", "a@b"),
    Identity("embedded", "@a@b%40c %", "x@y"), Identity("connection", "a b/ü%25"),
])  # fmt: skip
def test_identity_survives_a_record(identity: Identity) -> None:
    assert Identity.parse(json.loads(json.dumps(str(identity)))) == identity


@pytest.mark.parametrize("written", ["", "ray_default", "connection:", ":c", "slurm:c@1"])
def test_identity_of_another_version_is_a_clear_error(written: str) -> None:
    with pytest.raises(RayConnectionError, match="another version of the provider wrote"):
        open_cluster(written)


@pytest.mark.parametrize(("identity", "host"), [
    ("embedded:c@0f", "http://ray-head:8265"), ("connection:c", "local"),
])  # fmt: skip
def test_connection_that_means_another_kind_by_now_is_not_the_cluster_of_the_record(
    identity: str, host: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    uri = host.removeprefix("http://")
    monkeypatch.setenv("AIRFLOW_CONN_C", f"ray://{uri}")
    with pytest.raises(RayConnectionError, match=f"connection 'c' means {host} by now"):
        RayHook.to_cluster(identity).call(jobs_api.get_version())
    assert not folder.exists()


@pytest.mark.parametrize("conn_id", ["a@b", "a b", "a/b", "ü", "a%40b"])
def test_connection_of_any_id_is_found_by_its_identity(conn_id: str) -> None:
    cluster = open_cluster(meant_by(conn_id, "http://a:8265"), "http://a:8265")
    assert cluster.conn_id == conn_id
    assert RayHook.to_cluster(cluster.identity).ray_conn_id == conn_id


def test_address_of_a_connection_may_change_and_its_cluster_stays_the_one_of_the_record() -> None:
    for host in ("http://a:8265", "http://b:8265"):
        assert meant_by("c", host) == "connection:c"
        assert open_cluster("connection:c", host).address() == Access(host)


def test_embedded_ray_is_named_by_its_folder_and_never_started_to_be_named(folder: Path) -> None:
    assert RayHook("c").cluster == "embedded:c"  # none was ever started here
    folder.mkdir()
    (folder / "id").write_text("0f")
    assert RayHook("c").cluster == "embedded:c@0f"
    with pytest.raises(RayUnreachableError, match="does not run: it was stopped"):
        RayHook.to_cluster("embedded:c@0f").call(jobs_api.get_version())
    (folder / "token").touch()  # which `local stop` removes
    with pytest.raises(RayUnreachableError, match="its processes have died"):
        RayHook.to_cluster("embedded:c@0f").call(jobs_api.get_version())
    assert {path.name for path in folder.iterdir()} == {"id", "token"}


@pytest.mark.parametrize("kind", KINDS)
def test_cluster_that_is_bound_to_another_machine_is_refused_without_a_lookup(
    kind: str, folder: Path
) -> None:
    hook = RayHook.to_cluster(f"{kind}:nobody_made_this@elsewhere")
    if not hook.is_machine_bound:
        hook.check_machine()
        return
    with pytest.raises(RayConnectionError, match="deferrable=False"):
        hook.check_machine()
    assert not folder.exists()
