"""Airflow, a Kubernetes API, KubeRay's operator and real Ray heads, all of which may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.airflow_processes import Airflow
from tests.support.kube.heads import RealHeads
from tests.support.kube.operator import RayOperator
from tests.support.kube.server import Kube, kube_server
from tests.support.paths import ROOT

DAGS = ("made_waiting", "made_deferred", "shared_waiting", "shared_deferred")
_ENGINES = (ROOT / "tests" / "support" / "stub_engine.py", ROOT / "tests" / "support" / "held_engine.py")
#: Seconds after which KubeRay has ended the cluster of a job that has ended, one without a job, and any.
_KEPT_S = {"job's ttl": 300.0, "job's deadline": 3700.0, "lifetime": 86_400.0}
#: What it keeps of a cluster that has ended.
_KEPT_OBJECTS = ("rayjobs/", "services/")


class Stage:
    """:ivar data: the folder that holds the tables."""

    def __init__(self, data: Path, airflow: Airflow, kube: Kube, operator: RayOperator) -> None:
        self.data, self.airflow, self.kube, self.operator = data, airflow, kube, operator

    def heads(self) -> list[str]:
        """Returns the pods that have a process."""
        living = set(self.operator.heads.living())
        pods = [pod["metadata"] for pod in self.kube.objects("pods")]
        return [pod["name"] for pod in pods if pod["uid"] in living]

    def clusters_made(self, since: int = 0) -> int:
        """:param since: how many calls the API had had."""
        return len(
            {
                name
                for verb, plural, name in self.kube.calls[since:]
                if (verb, plural) == ("create", "rayjobs")
            }
        )

    def wait_for_nothing(self) -> tuple[str, list[str]]:
        """Returns what it took until nothing was left, "at once" or more,, and what is left."""
        left = self._wait(30)
        took = "at once"
        for name, seconds in _KEPT_S.items():
            if not left or all(line.startswith(_KEPT_OBJECTS) for line in left):
                break
            took = name
            self.kube.store.pass_time(seconds)
            left = self._wait(30)
        if left and all(line.startswith(_KEPT_OBJECTS) for line in left):
            took += ", clean"
            command = [sys.executable, "-m", "airflow_provider_raydatallm.cli.main", "clusters", "clean"]
            subprocess.run(
                [*command, "--namespace", "ml"],
                env=self.airflow.environment,
                cwd=self.data,
                check=True,
                capture_output=True,
            )
            left = self._wait(20)
        return took, left

    def _wait(self, seconds: float) -> list[str]:
        until = time.monotonic() + seconds
        while (left := self.operator.leftovers()) and time.monotonic() < until:
            time.sleep(0.3)
        return left

    def remove_all(self) -> None:
        """So that what one trial has left does not count as another's."""
        for plural in ("rayjobs", "rayclusters"):
            for item in self.kube.objects(plural):
                with contextlib.suppress(Exception):
                    self.kube.store.delete(plural, "ml", item["metadata"]["name"])
        self._wait(60)


class _Heads(RealHeads):
    interval_s = 1.0  # a look reads all processes of the machine


@contextmanager
def stage() -> Iterator[Stage]:
    with (
        tempfile.TemporaryDirectory(prefix="own-clusters-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        kube_server() as kube,
        RayOperator(kube, _Heads()) as operator,
    ):
        data = Path(folder)
        dags = data / "dags"
        dags.mkdir()
        shutil.copy(ROOT / "tests" / "durable" / "dags" / "slices.py", dags)
        connection = {"conn_type": "kubernetes", "extra": {"kube_config": kube.kubeconfig()}}
        environment = {
            "AIRFLOW_CONN_RAY_KUBERAY": "ray://kuberay",
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
            "DURABLE_ROOT": str(data),
            "DURABLE_ENGINES": os.pathsep.join(map(str, _ENGINES)),
        }
        airflow = Airflow(dags, environment)
        try:
            airflow.start_all()
            airflow.api.wait_dags(set(DAGS))
            yield Stage(data, airflow, kube, operator)
        finally:
            airflow.close()
