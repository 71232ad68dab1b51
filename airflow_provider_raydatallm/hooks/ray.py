"""`RayHook`: an Airflow connection of type `ray`, and calls to its cluster.

The connection's host says which kind of cluster it means (`clusters`). An unknown connection is an error,
never a silent local Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseHook
from airflow.sdk.log import redact  # type: ignore[attr-defined]  # not in its __all__, as mask_secret is not

from airflow_provider_raydatallm.clusters.base import (
    Cluster,
    ClusterEndedError,
    FindEnded,
    Holder,
    Identity,
    Order,
    none_has_ended,
)
from airflow_provider_raydatallm.clusters.kinds import open_cluster
from airflow_provider_raydatallm.contract.result.gpus_held import HeldNode
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import lookup
from airflow_provider_raydatallm.hooks.connection import CONNECT_TIMEOUT_S, RaySettings
from airflow_provider_raydatallm.hooks.http_clients import SharedClient, client_options
from airflow_provider_raydatallm.hooks.jobs_api import Backoff, Flow, HttpRequest, JobInfo

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: Of a lookup that a hook whose connection was read before does without.
_NOT_READ = (RayConnectionNotFoundError, RayUnreachableError)


class RayHook(BaseHook):
    """Calls the Ray Jobs REST API.

    `call` runs a flow of `jobs_api` and blocks; `acall` runs the same flow without blocking the event loop:

        RayHook("ray_default").call(jobs_api.get_status("raysubmit_1"))
        await RayHook("ray_default").acall(jobs_api.get_status("raysubmit_1"))

    Its first call acquires the cluster that the connection means: an embedded Ray starts if it does not run.

    :param ray_conn_id: a connection of type `ray`.
    :param holder: for whom the cluster is acquired (`Cluster.acquire`); None holds nothing.
    :param order: says what cluster is to be made for the holder; None: none is.
    """

    conn_name_attr = "ray_conn_id"
    default_conn_name = "ray_default"
    conn_type = "ray"
    hook_name = "Ray"

    def __init__(
        self,
        ray_conn_id: str = default_conn_name,
        holder: Holder | None = None,
        order: Callable[[], Order | None] = lambda: None,
    ) -> None:
        super().__init__()
        self.ray_conn_id = ray_conn_id
        self._holder, self._order = holder, order
        #: Of the cluster that was acquired, or that a record names.
        self._identity = ""
        self._acquires = True
        self._keeps = self._needs_unused = False
        self._last_settings: RaySettings | None = None

    @classmethod
    def to_cluster(cls, identity: str, holder: Holder | None = None) -> RayHook:
        """Returns a hook to the very cluster that a record names. It acquires none.

        :raises RayConnectionError: when the identity cannot be read.
        """
        hook = cls(Identity.parse(identity).conn_id, holder)
        hook._identity, hook._acquires, hook._keeps = identity, False, True
        return hook

    @cached_property
    def settings(self) -> RaySettings:
        """
        :raises RayConnectionError: when the connection cannot be used.
        :raises RayConnectionNotFoundError, RayUnreachableError: when there is none, or it cannot be read now.
        """
        try:
            settings = self._read_connection()
        except _NOT_READ:
            if self._last_settings is None:
                raise
            return self._last_settings
        return self._reach(settings)

    def get_conn(self) -> httpx.Client:
        """Returns a client of the cluster's Jobs API, which the caller closes."""
        import httpx

        return httpx.Client(**client_options(self.settings))

    def call(self, flow: Flow[T]) -> T:
        """Runs a flow of `jobs_api` and returns its result."""
        import httpx

        with self.get_conn() as client:
            response: httpx.Response | httpx.TransportError | None = None
            while True:
                try:
                    step = self._next_step(flow, response)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if isinstance(step, Backoff):
                    response = None
                    time.sleep(step.seconds)
                    continue
                try:
                    response = client.request(**_request_arguments(step))
                except httpx.TransportError as e:
                    response = e

    async def acall(self, flow: Flow[T]) -> T:
        """Runs a flow of `jobs_api` and returns its result, without blocking the event loop."""
        import httpx

        client = await self._aclient()
        response: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                step = self._next_step(flow, response)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(step, Backoff):
                response = None
                await asyncio.sleep(step.seconds)
                continue
            try:
                response = await client.request(**_request_arguments(step))
            except httpx.TransportError as e:
                response = e

    async def aget_status(self, submission_id: str) -> JobInfo | None:
        """Returns None when the cluster has no job of that id. Shares its calls with all that ask with the
        same settings in this event loop."""
        statuses = (await self._aclient()).statuses
        return await statuses.get(submission_id, self.acall)

    @contextlib.asynccontextmanager
    async def astream(self, request: HttpRequest) -> AsyncIterator[httpx.Response]:
        """Yields a response whose body is read as it arrives, without a read timeout."""
        import httpx

        client = await self._aclient()
        timeout = httpx.Timeout(30.0, connect=CONNECT_TIMEOUT_S, read=None)
        async with client.stream(**_request_arguments(request) | {"timeout": timeout}) as response:
            yield response

    def reread(self) -> None:
        """Makes the next call of a waiter read the connection again: its token may have been replaced. One
        that was deleted meanwhile, or cannot be read, is used as it was."""
        self._last_settings = self.__dict__.pop("settings", self._last_settings)

    async def _aclient(self) -> SharedClient:
        if "settings" not in self.__dict__:
            try:
                connection = await lookup.aget_connection(self.ray_conn_id, advice=self._advice)
            except _NOT_READ:
                if self._last_settings is None:
                    raise
                self.settings = self._last_settings
            else:
                self.settings = await asyncio.to_thread(
                    lambda: self._reach(RaySettings.from_connection(connection))
                )
        return SharedClient.for_settings(self.settings)

    def job_url(self, submission_id: str) -> str:
        """Returns the page of a job in the Ray Dashboard."""
        return f"{self.settings.dashboard_url or self.settings.address}/#/jobs/{submission_id}"

    def test_connection(self) -> tuple[bool, str]:
        """Returns whether the cluster can be used, and a description of it or of what is wrong, for the
        button "Test" of the UI and `airflow connections test`. Ends within about 10 seconds, raises and
        starts nothing.
        """
        from airflow_provider_raydatallm.hooks.connection_test import run_connection_test

        try:
            usable, text = run_connection_test(self._read_connection())
        except Exception as e:
            usable, text = False, str(e) or type(e).__name__
        return usable, str(redact(text))

    @property
    def cluster(self) -> str:
        """Identity of the cluster, as far as it is known: whole once the cluster was acquired."""
        return self._cluster.identity

    @property
    def acquired(self) -> str:
        """Identity of the cluster that this hook has acquired; "" before."""
        return self._identity if self._acquires else ""

    def acquire(self) -> str:
        """Returns the identity of the cluster, once it can be called: for records that other processes read.
        Every call of the cluster acquires it, too. One that has ended is followed by another."""
        try:
            _ = self.settings
        except ClusterEndedError:
            if not (self._acquires and self._identity):
                raise
            self._forget()
            _ = self.settings
        return self._identity

    def leave_used(self) -> None:
        """Says that no job of the holder runs, and one is to be submitted: a cluster that was made for one
        before is released, and acquired no more."""
        self._needs_unused = True
        if self.acquired and self.is_made_to_order:
            if self._cluster.is_used:
                self.release()
            self._forget()  # the next look removes what earlier tries have left, too

    def _forget(self) -> None:
        self._identity, self._keeps, self._last_settings = "", False, None
        self.__dict__.pop("settings", None)

    def _wanted(self) -> Order | None:
        order = self._order()
        return order and replace(order, is_unused=self._needs_unused)

    def keep(self) -> None:
        """Says that a job runs on the cluster that was acquired: from now on the hook calls no other one, and
        does not start it again when it was released."""
        self._keeps = True

    def means(self, identity: str) -> bool:
        """Whether a record that names a cluster means the one that this hook would call."""
        return identity == self._identity or self._cluster.means(identity)

    @property
    def has_ended(self) -> bool:
        """Whether the cluster has ended for good. It may not be known."""
        try:
            self._cluster.address()
        except ClusterEndedError:
            return True
        except (RayConnectionError, RayUnreachableError):
            return False
        return False

    def note_job(self, submission_id: str) -> None:
        """Says which job the cluster was acquired for."""
        self._cluster.note_job(submission_id)

    def held_nodes(self) -> Sequence[HeldNode]:
        """Returns the nodes with GPUs that are there for one task alone; none where these cannot be asked."""
        try:
            return self._cluster.held_nodes()
        except (RayConnectionError, RayUnreachableError) as e:
            self.log.debug("Cannot tell which GPUs were held", exc_info=e)
            return ()

    @property
    def is_machine_bound(self) -> bool:
        """Whether processes on other machines cannot reach the cluster."""
        return self._cluster.is_machine_bound

    @property
    def is_made_to_order(self) -> bool:
        """Whether the cluster is made for its tasks."""
        return self._cluster.is_made_to_order

    @property
    def keeps_engines(self) -> bool:
        """Whether engines stay on the cluster for the next slice, unless the task says otherwise."""
        return self._cluster.keeps_engines

    @property
    def dashboard_advice(self) -> str:
        """What people have to know before they open the cluster's dashboard; mostly nothing."""
        return self._cluster.dashboard_advice

    def check_machine(self) -> None:
        """:raises RayConnectionError: at once, when the cluster is bound to another machine."""
        self._cluster.check_machine()

    @property
    def ends_when_released(self) -> bool:
        """Whether there is a cluster to release."""
        return bool(self._identity) and self._cluster.ends_when_released

    def hold(self) -> None:
        """Says that the holder needs the cluster that a record names, if it can be released."""
        if self.ends_when_released:
            open_cluster(self._identity, self._read_connection().address).acquire(self._holder)

    def release(self, find_ended: FindEnded = none_has_ended) -> None:
        """Says that the holder does not need the cluster any more, which may end it.

        :param find_ended: see `Cluster.release`.
        """
        if self.ends_when_released:
            open_cluster(self._identity, self._read_connection().address).release(self._holder, find_ended)

    @property
    def engine_profiles(self) -> Mapping[str, Mapping[str, Any]]:
        """The connection's named engines: the operator's `engine` group by name."""
        return self._read_connection().engines

    def _read_connection(self) -> RaySettings:
        connection = lookup.get_connection(self.ray_conn_id, advice=self._advice)
        return RaySettings.from_connection(connection)

    @property
    def _advice(self) -> str:
        return (
            "Add one of type 'ray' with the Jobs address as its host (or 'local' for an embedded Ray on this "
            f"machine), such as AIRFLOW_CONN_{self.ray_conn_id.upper()}='ray://local'"
        )

    def _next_step(
        self, flow: Flow[T], response: httpx.Response | httpx.TransportError | None
    ) -> HttpRequest | Backoff:
        """
        :raises RayConnectionError, RayUnreachableError: naming the connection and its address, one of which
            may be wrong.
        :raises StopIteration: with the flow's result.
        """
        try:
            return flow.send(response)
        except (RayConnectionError, RayUnreachableError) as e:
            raise type(e)(e.failure.about(f"{self.settings.label} ({self.settings.address})")) from e

    @property
    def _cluster(self) -> Cluster:
        if self._identity:
            return open_cluster(self._identity)
        settings = self._read_connection()
        return open_cluster(settings.cluster, settings.address, self._wanted())

    def _reach(self, settings: RaySettings) -> RaySettings:
        order = None if self._keeps else self._wanted()
        if self._keeps or (order is not None and self._identity):
            try:
                return self._reach_cluster(open_cluster(self._identity, settings.address), settings)
            except ClusterEndedError:
                if order is None:
                    raise
        return self._reach_cluster(open_cluster(settings.cluster, settings.address, order), settings)

    def _reach_cluster(self, cluster: Cluster, settings: RaySettings) -> RaySettings:
        if self._acquires:
            cluster.acquire(self._holder)
            self._identity = cluster.identity
        return settings.for_cluster(cluster.address())


def _request_arguments(step: HttpRequest) -> dict[str, Any]:
    import httpx

    return {
        "method": step.method,
        "url": step.path.lstrip("/"),
        "json": step.json,
        "content": step.content,
        "timeout": httpx.Timeout(step.read_timeout, connect=CONNECT_TIMEOUT_S),
    }
