"""The Ray Jobs REST API, defined once for blocking and async callers.

Each call is a *flow*: a generator that yields `Send` (a request, answered with an `httpx.Response` or the
`httpx.TransportError` it met) and `Pause` (seconds to wait), and returns its result. `RayHook.call` and
`RayHook.acall` run the same flow; what is retried and what an answer means is written down here only.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_raydatallm.exceptions import (
    RayClusterUnfitError,
    RayConnectionError,
    RayLLMJobError,
    RayUnreachableError,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: Job states that nothing follows.
TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
#: The oldest Ray that the processor is tested with.
OLDEST_RAY = (2, 58)
#: Seconds between tries. A fresh head answers "No available agent" for some seconds; a cluster that fails
#: over is away for longer.
_BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str
    json: Any = field(default=None, repr=False)
    content: bytes | None = field(default=None, repr=False)
    read_timeout: float = 30.0


@dataclass(frozen=True)
class Backoff:
    seconds: float


Flow = Generator["HttpRequest | Backoff", "httpx.Response | httpx.TransportError | None", T]


@dataclass(frozen=True)
class JobInfo:
    """`status` is one of PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED. Times are epoch seconds. `node_id` is
    where the job's driver is, and its log."""

    status: str
    message: str
    node_id: str | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class ClusterResources:
    """What the living nodes have in all: logical CPUs, GPUs, and GPUs by type."""

    nodes: int
    cpus: float
    gpus: float
    accelerators: dict[str, float]


def version() -> Flow[str]:
    """Ray's version on the cluster.

    :raises RayClusterUnfitError: when it is older than the processor works with.
    """
    answer = yield from _send(HttpRequest("GET", "/api/version", read_timeout=10))
    found = str(_json(answer, "/api/version").get("ray_version", ""))
    numbers = tuple(int(n) for n in found.split(".")[:2] if n.isdigit())
    if len(numbers) == 2 and numbers < OLDEST_RAY:
        raise RayClusterUnfitError(
            f"the cluster runs Ray {found}; this provider needs at least {'.'.join(map(str, OLDEST_RAY))}: "
            "upgrade the cluster"
        )
    return found


def python_version() -> Flow[str | None]:
    """The minor version of Python on the cluster, such as "3.12"; None when it does not tell."""
    answer = yield from _send(
        HttpRequest("GET", "/api/v0/cluster_metadata", read_timeout=10), accept={200, 404}
    )
    if answer.status_code != 200:
        return None
    metadata = _json(answer, "cluster_metadata").get("data") or {}
    found = str(metadata.get("pythonVersion") or metadata.get("python_version") or "")
    return ".".join(found.split(".")[:2]) or None


def upload_package(name: str, content: bytes) -> Flow[str]:
    """Put a zip of code where every node finds it, unless it is there already. Returns its URI for
    `runtime_env`."""
    path = f"/api/packages/gcs/{name}"
    answer = yield from _send(HttpRequest("GET", path), accept={200, 404})
    if answer.status_code == 404:
        yield from _send(HttpRequest("PUT", path, content=content, read_timeout=120))
    return f"gcs://{name}"


def submit(
    *, submission_id: str, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]
) -> Flow[str]:
    """Submit a job; its id when it runs under that id, also when an answer to an earlier try was lost on the
    way."""
    body = {
        "submission_id": submission_id,
        "entrypoint": entrypoint,
        "runtime_env": runtime_env,
        "metadata": metadata,
    }
    trouble = ""
    for wait in (*_BACKOFF, None):
        answer = yield HttpRequest("POST", "/api/jobs/", json=body, read_timeout=60)
        status = getattr(answer, "status_code", None)
        if status is not None and not _is_passing(status):
            _refuse(answer)
            return submission_id
        trouble = _describe(answer)
        # A lost answer may hide a job that was taken: look before trying again.
        if "already exists" in trouble or (yield from get_status(submission_id)) is not None:
            return submission_id
        if wait is not None:
            yield Backoff(wait)
    raise RayUnreachableError(f"the job could not be submitted: {trouble}")


def get_status(submission_id: str) -> Flow[JobInfo | None]:
    """What the cluster knows of a job; None when it knows none of that id."""
    path = f"/api/jobs/{submission_id}"
    answer = yield from _send(HttpRequest("GET", path), accept={200, 404})
    if answer.status_code == 404:
        if "does not exist" in answer.text:
            return None
        # A proxy in front of a cluster that is being redeployed says so too.
        raise RayUnreachableError(f"GET {path}: {_describe(answer)}")
    info = _json(answer, "job")
    return JobInfo(
        status=str(info.get("status", "")),
        message=str(info.get("message") or ""),
        node_id=info.get("driver_node_id"),
        started_at=_seconds(info.get("start_time")),
        ended_at=_seconds(info.get("end_time")),
    )


def last_lines(submission_id: str, info: JobInfo, count: int) -> Flow[str]:
    """The end of what the job's driver has printed; "" while it has no log, or its node does not answer."""
    if info.node_id is None:
        return ""
    answer = yield _log("file", submission_id, info.node_id, f"lines={count}")
    return str(answer.text) if getattr(answer, "status_code", None) == 200 else ""  # type: ignore[union-attr]


def follow_log(submission_id: str, node_id: str, *, from_start: bool) -> HttpRequest:
    """A request whose answer is the job's log, from its first line or its last, and goes on as long as it is
    read."""
    # Ray has another follower, the websocket /api/jobs/ID/logs/tail; it always begins at the first line.
    return _log("stream", submission_id, node_id, f"lines={-1 if from_start else 1}&interval=1")


def _log(media: str, submission_id: str, node_id: str, how: str) -> HttpRequest:
    return HttpRequest(
        "GET", f"/api/v0/logs/{media}?node_id={node_id}&filename=job-driver-{submission_id}.log&{how}"
    )


def send_heartbeat(owner: str) -> Flow[None]:
    """Let a job know that somebody waits for it (`processor/cluster/orphan_watch.py` listens).

    The Jobs API has no word for that. It stores packages of code in the cluster's key-value store, under any
    name, and a job can read them there.
    """
    yield from _send(
        HttpRequest("PUT", f"/api/packages/gcs/{owner}", content=uuid.uuid4().hex.encode(), read_timeout=10)
    )


def stop(submission_id: str) -> Flow[bool]:
    """Ask a job to stop: SIGTERM, then SIGKILL. False when it was over already or is not known."""
    answer = yield from _send(
        HttpRequest("POST", f"/api/jobs/{submission_id}/stop", read_timeout=10), accept={200, 404}
    )
    return answer.status_code == 200 and bool(_json(answer, "stop").get("stopped"))


def resources() -> Flow[ClusterResources]:
    """What the cluster has at the moment; an autoscaler may bring more."""
    answer = yield from _send(HttpRequest("GET", "/api/v0/nodes?detail=1&limit=10000"))
    found = _json(answer, "nodes")["data"]["result"]["result"]
    totals = [n["resources_total"] for n in found if n.get("state") == "ALIVE"]
    kinds: dict[str, float] = {}
    for node in totals:
        for name in node:
            if name.startswith("accelerator_type:"):
                kind = name.removeprefix("accelerator_type:")
                kinds[kind] = kinds.get(kind, 0) + node.get("GPU", 0)
    return ClusterResources(
        nodes=len(totals),
        cpus=sum(n.get("CPU", 0) for n in totals),
        gpus=sum(n.get("GPU", 0) for n in totals),
        accelerators=kinds,
    )


def _send(
    request: HttpRequest, *, accept: frozenset[int] | set[int] = frozenset({200})
) -> Flow[httpx.Response]:
    """Send a request that does no harm when it is sent twice; retry while the cluster is away or unwell."""
    answer: Any = None
    for wait in (*_BACKOFF, None):
        answer = yield request
        status = getattr(answer, "status_code", None)
        if status in accept:
            return answer  # type: ignore[no-any-return]
        if status is not None and not _is_passing(status):
            _refuse(answer)
            raise RayLLMJobError(f"{request.method} {request.path}: unexpected answer {_describe(answer)}")
        if wait is not None:
            yield Backoff(wait)
    raise RayUnreachableError(
        f"{request.method} {request.path} failed {len(_BACKOFF) + 1} times: {_describe(answer)}"
    )


def _is_passing(status: int) -> bool:
    """Whether the same request may be answered later: the server's trouble, or too many requests."""
    return status >= 500 or status in (408, 425, 429)


def _refuse(answer: Any) -> None:
    """:raises RayConnectionError: when the cluster refuses the request for good."""
    status = answer.status_code
    if status in (401, 403):
        raise RayConnectionError(
            f"the cluster refuses the token (HTTP {status}: {answer.text.strip()[:200]}): put the "
            "cluster's token (`ray get-auth-token` on its head) into the connection's password or auth_file"
        )
    if status in (301, 302, 307, 308):
        raise RayConnectionError(
            f"the address redirects to {answer.headers.get('location')}: use the Jobs address itself, "
            "without a login page"
        )
    if status >= 400:
        raise RayConnectionError(f"the cluster refuses the request: {_describe(answer)}")


def _describe(answer: Any) -> str:
    status = getattr(answer, "status_code", None)
    if status is not None:
        # Ray answers an error with a whole traceback; its last line says what is wrong.
        lines = [line for line in answer.text.strip().splitlines() if line.strip()]
        return f"HTTP {status}: {(lines[-1] if lines else '')[:500]}"
    return f"{type(answer).__name__}: {answer}"


def _json(answer: httpx.Response, what: str) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RayConnectionError(
            f"the address does not speak the Ray Jobs API ({what} answered {answer.text.strip()[:100]!r}): "
            "the connection needs the dashboard's address, such as http://ray-head:8265"
        )
    return found


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if milliseconds else None
