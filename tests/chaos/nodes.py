"""Nodes beside the head's, and programs of others that take its CPUs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cached_property

import psutil

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from tests.support.paths import ROOT

_START_SECONDS = 240.0


class Node:
    """A second node of the head's cluster, on this machine."""

    def __init__(self, head: LocalHead, cpus: int) -> None:
        self._head = head
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.node", head.gcs_address, str(cpus)],
            env=os.environ | head.environment(), cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    @cached_property
    def id(self) -> str:
        """Waits for it to join."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def is_idle(self) -> bool:
        """Whether an autoscaler may take it: it has no work, by Ray's own account."""
        ask = (
            "import sys; from ray.autoscaler.v2.sdk import get_cluster_status;"
            "print(*(node.node_id for node in get_cluster_status(sys.argv[1]).idle_nodes))"
        )
        idle = subprocess.run(
            [sys.executable, "-c", ask, self._head.gcs_address],
            env=os.environ | self._head.environment(), check=True, capture_output=True, text=True,
        )  # fmt: skip
        return self.id in idle.stdout.split()

    def give_notice(self, seconds: int) -> None:
        """That it is reclaimed, as Ray is told of spot nodes. Nobody ends it then."""
        subprocess.run(
            [
                sys.executable, "-m", "ray.scripts.scripts", "drain-node",
                "--address", self._head.gcs_address, "--node-id", self.id,
                "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot",
                "--deadline-remaining-seconds", str(seconds),
            ],
            env=os.environ | self._head.environment(), check=True, capture_output=True,
        )  # fmt: skip

    def kill(self, *, raylet_only: bool = False) -> None:
        """All of it at once, as a machine goes; or its raylet, with which all else is to end by itself."""
        with contextlib.suppress(psutil.NoSuchProcess):
            all_of_it = psutil.Process(self._process.pid)
            processes = [all_of_it, *all_of_it.children(recursive=True)]
            for process in [p for p in processes if not raylet_only or p.name() == "raylet"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if not raylet_only:
            self._process.wait()


@contextlib.contextmanager
def taken(head: LocalHead, cpus: int, *, at_once: bool = True) -> Iterator[None]:
    """So many logical CPUs are another program's, as soon as they are free.

    :param at_once: wait until it has them.
    """
    from ray.job_submission import JobStatus, JobSubmissionClient

    client = JobSubmissionClient(head.address, headers={"Authorization": f"Bearer {head.token}"})
    name = client.submit_job(entrypoint="sleep 100000", entrypoint_num_cpus=cpus)
    deadline = time.monotonic() + _START_SECONDS
    try:
        while at_once and client.get_job_status(name) != JobStatus.RUNNING:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{cpus} CPUs were not free")
            time.sleep(0.5)
        yield
    finally:
        client.stop_job(name)
        while not client.get_job_status(name).is_terminal():
            time.sleep(0.5)
