"""What each kind of cluster takes to be in the behaviour suite: to start, die, refuse and be replaced."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_provider_raydatallm.clusters.base import ClusterStartingError, Holder, Order
from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.clusters.embedded import folder as head_folder
from airflow_provider_raydatallm.clusters.embedded.folder import FOLDER_VARIABLE, HeadRecord, read_record
from airflow_provider_raydatallm.clusters.embedded.head import ensure_head, head_status, stop_head
from airflow_provider_raydatallm.clusters.embedded.processes import find_processes
from airflow_provider_raydatallm.clusters.kinds import KINDS
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.kube.heads import FakeHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import kube_server
from tests.support.kube.tasks import CLUSTER
from tests.support.toy_clusters import ToyCluster

CONNECTION = "staged"


class Stage(ABC):
    """One kind, and the cluster of the connection `staged`. `close` leaves nothing."""

    host: str
    #: What its tasks want made.
    order: Order | None = None
    #: Whether a waiter is told that the cluster has ended for good.
    tells_end = False
    #: The error that a waiter has whose cluster was ended on purpose.
    released: str

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(jobs_api, "_BACKOFF", (0.01,))
        self.patch.setenv("NO_PROXY", "127.0.0.1")

    @abstractmethod
    def start(self) -> None:
        """Makes the cluster run, if it is not for `acquire` to start it."""

    @abstractmethod
    def kill(self) -> None:
        """The cluster dies, and nobody meant it to."""

    @abstractmethod
    def end(self) -> None:
        """The cluster is ended on purpose: by who runs it, or by its last holder."""

    @abstractmethod
    def replace(self) -> None:
        """Another cluster comes to the same address, or the same name, where that is all that there is."""

    @abstractmethod
    def refuse(self) -> None: ...

    @abstractmethod
    def accept(self) -> None: ...

    @abstractmethod
    def runs(self) -> bool: ...

    def acquire(self, task: str, *, try_number: int = 1) -> RayHook:
        hook = RayHook(CONNECTION, Holder(task, try_number), lambda: self.order)
        until = time.monotonic() + 90
        while True:
            try:
                hook.acquire()
            except ClusterStartingError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return hook

    def submit(self, identity: str) -> str:
        """Submits a job that runs on, and returns its id."""
        name = f"job-{uuid.uuid4().hex}"
        submit = jobs_api.submit(submission_id=name, entrypoint="sleep 600", runtime_env={}, metadata={})
        RayHook.to_cluster(identity).call(submit)
        return name

    def close(self) -> None:
        self.patch.undo()

    def _connect(self) -> None:
        self.patch.setenv(
            f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps({"conn_type": "ray", "host": self.host})
        )


class ConnectionStage(Stage):
    released = "GET /api/.* failed .* ConnectError"

    def __init__(self) -> None:
        super().__init__()
        self._server: FakeCluster | None = None
        self._port, self._end = 0, ExitStack()

    def start(self) -> None:
        if self._server is None:
            self._server = self._end.enter_context(fake_cluster(self._port))
            self._server.status = None  # it knows the jobs that are submitted to it
            self._port, self.host = self._server.server_port, self._server.address
            self._connect()

    def kill(self) -> None:
        self._end.close()
        self._server = None

    end = kill

    def replace(self) -> None:
        self.kill()
        self.start()

    def refuse(self) -> None:
        assert self._server is not None
        self._server.token = "another"

    def accept(self) -> None:
        assert self._server is not None
        self._server.token = None

    def runs(self) -> bool:
        return self._server is not None

    def close(self) -> None:
        self._end.close()
        super().close()


class ToyStage(Stage):
    host = "toy"
    released = "the toy toy-.* was released"

    def __init__(self) -> None:
        super().__init__()
        self.patch.setitem(KINDS, ToyCluster.kind, ToyCluster)
        self.patch.setattr(ToyCluster, "made", {})
        self.patch.setattr(ToyCluster, "is_starting", False)
        self._connect()

    def start(self) -> None:
        """It is for `acquire`. Who held it before does not count."""
        for toy in ToyCluster.made.values():
            toy.holders.clear()

    @property
    def _toy(self) -> tuple[str, FakeCluster]:
        [(own, toy)] = ToyCluster.made.items()
        return own, toy.server

    def submit(self, identity: str) -> str:
        self._server_knows_jobs()
        return super().submit(identity)

    def _server_knows_jobs(self) -> None:
        RayHook(CONNECTION).acquire()
        self._toy[1].status = None

    def kill(self) -> None:
        [toy] = ToyCluster.made.values()
        toy.end.close()

    def end(self) -> None:
        ToyCluster.end(self._toy[0])

    def replace(self) -> None:
        own, server = self._toy
        ToyCluster.end(own)
        ToyCluster.make(server.server_port)
        self._server_knows_jobs()

    def refuse(self) -> None:
        self._toy[1].token = "another"

    def accept(self) -> None:
        self._toy[1].token = None

    def runs(self) -> bool:
        return bool(ToyCluster.made)

    def close(self) -> None:
        for own in list(ToyCluster.made):
            ToyCluster.end(own)
        super().close()


class KubeRayStage(Stage):
    """A cluster that tasks share by its name, of heads that only answer."""

    host = "kuberay"
    order = Order(Blueprint.parse({"template": CLUSTER, "namespace": "ml", "name": "shared"}), 60)
    tells_end = True
    released = "Ray cluster shared was released"

    def __init__(self) -> None:
        super().__init__()
        self._end = ExitStack()
        self.kube = self._end.enter_context(kube_server())
        self.operator = self._end.enter_context(RayOperator(self.kube))
        extra = {"kube_config": self.kube.kubeconfig()}
        connection = {"conn_type": "kubernetes", "extra": extra}
        self.patch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
        self._connect()

    def start(self) -> None:
        """It is for `acquire`. Who held it before does not count."""
        self.operator.start()
        if self.operator.leftovers():
            self.end()

    @property
    def _server(self) -> FakeCluster:
        heads = self.operator.heads
        assert isinstance(heads, FakeHeads)
        return heads.server

    def kill(self) -> None:
        self.operator.stop()  # else it would make another head
        for pod in self.kube.objects("pods"):
            self.operator.kill_pod(pod["metadata"]["name"])

    def end(self) -> None:
        self.operator.start()
        if self.runs():
            self.kube.store.delete("rayjobs", "ml", "shared")
        until = time.monotonic() + 90
        while left := self.operator.leftovers():
            assert time.monotonic() < until, left
            time.sleep(0.05)

    def replace(self) -> None:
        self.end()
        self.acquire("other").acquire()

    def refuse(self) -> None:
        self._token, self._server.token = self._server.token, "another"

    def accept(self) -> None:
        self._server.token = self._token

    def runs(self) -> bool:
        return any("deletionTimestamp" not in job["metadata"] for job in self.kube.objects("rayjobs"))

    def close(self) -> None:
        self._end.close()
        super().close()


class EmbeddedStage(Stage):
    """Real Ray, in a folder of its own."""

    host = "local"
    released = "the embedded Ray of this machine does not run: it was stopped"

    def __init__(self) -> None:
        super().__init__()
        # pytest's own temporary folders are too long for Unix sockets.
        self._folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
        self.patch.setenv(FOLDER_VARIABLE, str(self._folder))
        self._connect()

    def start(self) -> None:
        """It is for `acquire`; here for what asks whether it runs."""
        ensure_head()

    def kill(self) -> None:
        while members := find_processes(self._folder, {}):
            for process in members.values():
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue

    def end(self) -> None:
        stop_head()

    def replace(self) -> None:
        stop_head()
        ensure_head()

    def refuse(self) -> None:
        """Its own processes read the token, too: only what this one reads is wrong."""

        def wrong(folder: Path) -> HeadRecord | None:
            record = read_record(folder)
            return record and replace(record, head=replace(record.head, token="another"))

        self.patch.setattr(head_folder, "read_record", wrong)

    def accept(self) -> None:
        self.patch.setattr(head_folder, "read_record", read_record)

    def runs(self) -> bool:
        return head_status() is not None

    def close(self) -> None:
        stop_head()
        shutil.rmtree(self._folder, ignore_errors=True)
        super().close()
