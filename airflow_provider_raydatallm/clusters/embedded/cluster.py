"""The kind `embedded`: a Ray head on this machine, which tasks start and people stop."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_raydatallm.clusters.base import Access, Cluster, Holder, Order
from airflow_provider_raydatallm.clusters.embedded.head import (
    MIN_CPUS,
    LocalHead,
    LocalHeadError,
    ensure_head,
    head_identity,
    head_status,
    installed_ray,
    was_stopped,
)
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError


class EmbeddedCluster(Cluster):
    """Identified by its folder: heads that follow each other there are one cluster, whose jobs a new head has
    forgotten. It stays until `airflow-ray-llm local stop`: the next task uses it, and its engines, too."""

    kind = "embedded"
    host_name = "local"
    is_machine_bound = True
    keeps_engines = True
    dashboard_advice = "Its dashboard asks for a token: `airflow-ray-llm local dashboard` prints it"

    def __init__(self, conn_id: str, own: str = "", host: str = "", wanted: Order | None = None) -> None:
        super().__init__(conn_id, own, host, wanted)
        #: As `acquire` found it, healthy a moment ago.
        self._head: LocalHead | None = None

    @property
    def identity(self) -> str:
        with self._own_errors():
            self._own = self._own or head_identity() or ""
        return super().identity

    def acquire(self, holder: Holder | None) -> None:
        with self._own_errors():
            if self._own:
                self.check_machine()
                if was_stopped():
                    raise self._not_running("it was stopped")
            self._head = ensure_head()

    def address(self) -> Access:
        with self._own_errors():
            if self._own:
                self.check_machine()
            head = self._head or head_status()
            if head is None:
                died = "its processes have died, or do not answer"
                raise self._not_running("it was stopped" if was_stopped() else died)
        return Access(head.address, head.token)

    def check_machine(self) -> None:
        with self._own_errors():
            is_here = head_identity() == self._own
        if not is_here:
            raise RayConnectionError(
                f"{self.label} is the embedded Ray of another machine, user or folder than this process has",
                advice="Run workers and triggerer on one machine, set deferrable=False, or use a Ray cluster",
            )

    def describe(self, check: Callable[[Access], tuple[bool, str]]) -> tuple[bool, str]:
        machine = f"on {platform.node()}, where this test runs"
        if head := head_status():
            usable, text = check(Access(head.address, head.token))
            return usable, f"Embedded head {machine}, since {head.started_at}: {text}"
        try:
            version = installed_ray()
        except LocalHeadError as e:
            return False, f"No embedded head runs {machine}, and none can be started: {e}"
        return True, (
            f"No embedded head runs {machine}. The first task starts one on its worker: Ray {version} with "
            f"{max(MIN_CPUS, os.cpu_count() or 1)} logical CPUs, if that worker is like this machine. "
            "`airflow-ray-llm local status` shows more."
        )

    def _not_running(self, why: str) -> RayUnreachableError:
        return RayUnreachableError(f"{self.label}: the embedded Ray of this machine does not run: {why}")

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except LocalHeadError as e:
            raise RayConnectionError(e.failure.about(self.label)) from e
