"""What runs behind a pod: nothing but a Jobs API, or real Ray nodes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from airflow_provider_raydatallm.clusters.embedded.head import MIN_CPUS, free_ports
from airflow_provider_raydatallm.clusters.embedded.processes import MARKER_VARIABLE, head_environment
from tests.support.fake_cluster import FakeCluster, fake_cluster


class Heads(ABC):
    """Starts and ends the processes of pods, which are told apart by the pods' uids."""

    #: Seconds between two looks at them.
    interval_s: float

    @abstractmethod
    def start(self, pod: str, flags: Mapping[str, str], env: Mapping[str, str]) -> None:
        """:param flags: of `ray start`, as the pod's command has them"""

    @abstractmethod
    def is_alive(self, pod: str) -> bool: ...

    @abstractmethod
    def is_ready(self, pod: str) -> bool: ...

    @abstractmethod
    def kill(self, pod: str) -> None: ...

    @abstractmethod
    def living(self) -> list[str]:
        """Returns the pods that have a process."""

    @abstractmethod
    def log(self, pod: str) -> str:
        """Returns the end of what its process wrote."""

    def close(self) -> None:
        for pod in self.living():
            self.kill(pod)


class FakeHeads(Heads):
    """`servers`: the Jobs API of each head pod; `logs`: what pods wrote. Workers are nothing."""

    interval_s = 0.02

    def __init__(self) -> None:
        self.servers: dict[str, FakeCluster] = {}
        self.logs: dict[str, str] = {}
        self._pods: dict[str, ExitStack] = {}

    @property
    def server(self) -> FakeCluster:
        """That of the only head."""
        (server,) = self.servers.values()
        return server

    def start(self, pod: str, flags: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._pods[pod] = end = ExitStack()
        if "head" in flags:
            server = end.enter_context(fake_cluster(int(flags["dashboard-port"])))
            server.status, server.token = None, env.get("RAY_AUTH_TOKEN")
            self.servers[pod] = server

    def is_alive(self, pod: str) -> bool:
        return pod in self._pods

    def is_ready(self, pod: str) -> bool:
        return pod in self._pods

    def kill(self, pod: str) -> None:
        self.servers.pop(pod, None)
        if (end := self._pods.pop(pod, None)) is not None:
            end.close()

    def living(self) -> list[str]:
        return list(self._pods)

    def log(self, pod: str) -> str:
        return self.logs.get(pod, "")


# On loopback, which Ray takes only of a head: what it is told of the platform holds in its other processes.
_RAY_START = """
from ray._private import ray_constants, services
from ray.scripts.scripts import main
ray_constants.ENABLE_RAY_CLUSTER = True
services.get_node_ip_address = lambda address=None: "127.0.0.1"
main()
"""

#: Set in every process of a pod, to the pod's uid.
_POD_VARIABLE = "FAKE_KUBE_POD"


@dataclass
class _Node:
    process: subprocess.Popen[bytes]
    folder: Path
    #: That answer 200 once the pod is ready.
    probes: list[str]
    token: str


class RealHeads(Heads):
    """A Ray node for each pod, on loopback, with a folder of its own."""

    interval_s = 0.3

    def __init__(self) -> None:
        #: The pods so far: others may run on this machine.
        self._started: set[str] = set()
        self._nodes: dict[str, _Node] = {}
        self._logs: dict[str, str] = {}

    def start(self, pod: str, flags: Mapping[str, str], env: Mapping[str, str]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))  # sockets have short paths
        self._started.add(pod)
        (agent,) = free_ports(1)
        own = {
            "node-ip-address": "127.0.0.1",
            "dashboard-agent-listen-port": str(agent),
            # Else the nodes of this machine would give their workers the same ports.
            "min-worker-port": "0",
            "max-worker-port": "0",
            "num-cpus": str(_cpus(flags.get("num-cpus", ""))),
            "temp-dir": str(folder / "tmp"),
        }
        probes = [f"http://127.0.0.1:{agent}/api/local_raylet_healthz"]
        if "head" in flags:
            dashboard = f"http://127.0.0.1:{flags['dashboard-port']}"
            own["dashboard-host"] = "127.0.0.1"
            # The second passes through the agent. Until that runs, Ray refuses jobs.
            probes += [
                f"{dashboard}/api/gcs_healthz",
                f"{dashboard}/api/v0/logs?node_ip=127.0.0.1&glob=none&timeout=5",
            ]
        options = [f"--{key}={value}" if value else f"--{key}" for key, value in {**flags, **own}.items()]
        command = [sys.executable, "-c", _RAY_START, "start", *options, "--disable-usage-stats"]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_environment(folder, pod, env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._nodes[pod] = _Node(process, folder, probes, env.get("RAY_AUTH_TOKEN", ""))

    def is_alive(self, pod: str) -> bool:
        return pod in self._nodes and self._nodes[pod].process.poll() is None

    def is_ready(self, pod: str) -> bool:
        node = self._nodes[pod]
        headers = {"Authorization": f"Bearer {node.token}"} if node.token else {}
        try:
            with httpx.Client(headers=headers, timeout=6, trust_env=False) as client:
                return all(client.get(url).status_code == 200 for url in node.probes)
        except httpx.HTTPError:
            return False

    def kill(self, pod: str) -> None:
        node = self._nodes.pop(pod, None)
        deadline = time.monotonic() + 30
        while processes := _processes(pod):
            for process in processes:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            if node is not None:
                node.process.poll()
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes of the pod {pod} survive SIGKILL: {processes}")
            time.sleep(0.05)
        if node is not None:
            node.process.wait(10)
            self._logs[pod] = _tail(node.folder)
            shutil.rmtree(node.folder, ignore_errors=True)

    def living(self) -> list[str]:
        """Includes pods whose first process has ended but not all that it started."""
        if not self._started:
            return []
        return sorted(self._started & {_pod_of(process) for process in psutil.process_iter()})

    def log(self, pod: str) -> str:
        return _tail(self._nodes[pod].folder) if pod in self._nodes else self._logs.get(pod, "")


def _cpus(declared: str) -> int:
    """Returns a node's logical CPUs: none, where a head shall have none, or enough for Ray Data."""
    return 0 if declared == "0" else max(MIN_CPUS, int(float(declared or 0)))


def _environment(folder: Path, pod: str, env: Mapping[str, str]) -> dict[str, str]:
    base = head_environment(folder)
    for name in (MARKER_VARIABLE, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        del base[name]
    return {**base, "RAY_AUTH_MODE": "disabled", **env, _POD_VARIABLE: pod}


def _processes(pod: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _pod_of(process) == pod]


def _pod_of(process: psutil.Process) -> str:
    """Returns "" for a process of no pod, and for one that is dead."""
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.environ().get(_POD_VARIABLE, "")
    return ""


def _tail(folder: Path) -> str:
    with suppress(OSError):
        return (folder / "log").read_text(errors="replace")[-2000:]
    return ""
