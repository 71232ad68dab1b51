"""The port of clusters: what a task needs of the place where Ray runs, whoever starts and ends that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote

from airflow_provider_raydatallm.clusters.blueprint import Blueprint
from airflow_provider_raydatallm.contract.result.gpus_held import HeldNode
from airflow_provider_raydatallm.exceptions import RayConnectionError, RayUnreachableError


class ClusterStartingError(RayUnreachableError):
    """The cluster was acquired and has no address yet. Whoever waits asks again, within `limits.queue`."""


class ClusterEndedError(RayUnreachableError):
    """The cluster has ended for good, and its jobs with it."""


@dataclass(frozen=True)
class Identity:
    """Names one cluster in records, which other processes read, on other machines and after crashes.

    :param conn_id: the connection by which the cluster is reached.
    :param own: tells the cluster from others that the same connection means, elsewhere or later; "" where
        that cannot be known.
    """

    kind: str
    conn_id: str
    own: str = ""

    def __str__(self) -> str:
        # Environment variables and secrets backends may have "@" in an id.
        conn_id = self.conn_id.replace("%", "%25").replace("@", "%40")
        return f"{self.kind}:{conn_id}" + (f"@{self.own}" if self.own else "")

    @classmethod
    def parse(cls, text: str) -> Identity:
        """:raises RayConnectionError: for what another version of the provider wrote, and this one cannot
        read."""
        kind, _, rest = text.partition(":")
        conn_id, _, own = rest.partition("@")
        if not (kind and conn_id):
            raise RayConnectionError(
                f"cannot read which cluster {text!r} is: another version of the provider wrote it"
            )
        return cls(kind, unquote(conn_id), own)


@dataclass(frozen=True)
class Holder:
    """A try of a task that needs a cluster. A task has one hold on it, which is its newest try's: an earlier
    one that died need not release it, and one that was thought dead and wakes up cannot.

    :param until: the task whose end ends the hold, whoever releases it or not: "" its own; None: none.
    """

    task: str
    try_number: int
    until: str | None = ""


#: Returns which of these tasks, whatever their try, have ended.
FindEnded = Callable[[Collection[str]], Collection[str]]


def none_has_ended(tasks: Collection[str]) -> Collection[str]:
    return ()


@dataclass(frozen=True)
class Order:
    """A cluster that is to be made for a task.

    :param queue_s: for how long the task waits for it.
    :param is_unused: whether one that was made for a job of the task will not do, which ends with that job.
    """

    blueprint: Blueprint
    queue_s: float
    is_unused: bool = False


@dataclass(frozen=True)
class Gateway:
    """What passes calls on to a cluster, and asks who makes them; what stands in `Authorization` it keeps to
    itself. Paths are absolute.

    :param headers: that it wants with each call.
    :param server_name: that its certificate has, if not its address'.
    :param proxy: by which it is reached.
    """

    headers: Mapping[str, str] = field(repr=False)
    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Access:
    """How to call a cluster.

    :param address: of the Jobs API, without a slash at its end.
    :param token: the cluster's own, with which nothing of the connection or the environment is sent there;
        None: the connection says how to authenticate.
    :param gateway: on the way to a cluster with a token of its own.
    :param is_passing: whether the token is one of many that this process will know, each for a task's time.
    """

    address: str
    token: str | None = field(default=None, repr=False)
    gateway: Gateway | None = None
    is_passing: bool = False


class Cluster(ABC):
    """One cluster, as one process sees it. Its state is where other processes find it, never in this object:
    whoever resumes a task opens the same cluster by its identity (`kinds.open_cluster`).

    A kind's methods may block, so event loops call them in threads. They raise `RayUnreachableError` for what
    may pass, and `RayConnectionError` for what may not.

    :param own: of the identity; "" means the cluster that the connection means now.
    :param host: of the connection; "" where nobody has read it.
    :param wanted: what a task wants of a cluster that is made for it; None where nobody has said.
    """

    kind: ClassVar[str]
    #: What connections of this kind have as their host; None: an address.
    host_name: ClassVar[str | None] = None
    #: Whether processes on other machines cannot reach it.
    is_machine_bound: ClassVar[bool] = False
    #: The cleanup policy: whether the cluster ends when its last holder has released it. Otherwise it stays
    #: until somebody else ends it, and nobody counts its holders.
    ends_when_released: ClassVar[bool] = False
    #: Whether tasks say what they want of it, which is then made for them.
    is_made_to_order: ClassVar[bool] = False
    #: Whether engines stay for the next slice, unless the task says otherwise.
    keeps_engines: ClassVar[bool] = False
    #: What people have to know before they open its dashboard.
    dashboard_advice: ClassVar[str] = ""

    def __init__(self, conn_id: str, own: str = "", host: str = "", wanted: Order | None = None) -> None:
        self.conn_id, self._own, self._host, self._wanted = conn_id, own, host, wanted
        #: What errors call the cluster.
        self.label = f"connection {conn_id!r}"

    @property
    def identity(self) -> str:
        """Known from `acquire` on, before there is an address."""
        return str(Identity(self.kind, self.conn_id, self._own))

    def means(self, identity: str) -> bool:
        """Whether a record that names a cluster means this one."""
        return identity == self.identity

    def acquire(self, holder: Holder | None) -> None:  # noqa: B027  # most clusters need no holder
        """Starts the cluster if it does not run, and notes that `holder` needs it, once however often it says
        so. Opened by an identity of its own, it repairs that cluster at most: one that was released is not
        started again.

        Does not wait for a cluster that takes minutes: `address` raises `ClusterStartingError` meanwhile, and
        the task asks again, on its worker or in the triggerer.

        :param holder: takes over the hold of its task's earlier tries; None holds nothing.
        """

    @abstractmethod
    def address(self) -> Access:
        """Returns how to call the cluster; starts nothing.

        :raises RayConnectionError: when this process can never reach it.
        :raises ClusterEndedError: when it ran, and never will again.
        :raises RayUnreachableError: while it does not run; the text says so if it was released.
        """

    def note_job(self, submission_id: str) -> None:  # noqa: B027
        """Says which job the cluster was acquired for, once that is submitted: a cluster that was made for it
        may end with it. Said more than once, it changes nothing."""

    @property
    def is_used(self) -> bool:
        """Whether another job needs another cluster: this one is gone, or ends with the job that it has."""
        return False

    def release(self, holder: Holder | None, find_ended: FindEnded = none_has_ended) -> None:  # noqa: B027
        """Notes that `holder` does not need the cluster any more; others may, such as a newer try of its
        task. The last one's release ends it where the kind `ends_when_released`. A holder that dies releases
        nothing: such a kind has a lifetime, too.

        :param find_ended: is asked which other holds have ended (`Holder.until`) and were not released.
        """

    def held_nodes(self) -> Sequence[HeldNode]:
        """Returns those with GPUs that are there for one task alone; none where nobody knows of such."""
        return ()

    def check_machine(self) -> None:  # noqa: B027
        """Touches nothing but this machine, so that a process on another one says so at once.

        :raises RayConnectionError: when the cluster is bound to another machine.
        """

    def describe(self, check: Callable[[Access], tuple[bool, str]]) -> tuple[bool, str]:
        """Returns for people whether the cluster can be used, and what it is or lacks; starts nothing.

        :param check: calls a cluster that runs.
        """
        return check(self.address())
