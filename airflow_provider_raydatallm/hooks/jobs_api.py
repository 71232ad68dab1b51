"""The Ray Jobs REST API, defined once for blocking and async callers.

Each call is a *flow*: a generator that yields `HttpRequest` (and receives the `httpx.Response` or the
`httpx.TransportError`) and `Backoff` (seconds to wait), and returns its result. `RayHook.call` and
`RayHook.acall` run the same flow, so retries and the meaning of responses are defined only here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_raydatallm.contract.job.heartbeat import CONFIRMED
from airflow_provider_raydatallm.exceptions import (
    RayClusterUnfitError,
    RayConnectionError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks.tls_errors import explain_tls_error

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: Final job states.
TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
OLDEST_RAY = (2, 58)
#: By which Ray's own refusals are told from a proxy's: its token check says the former, and it answers a
#: request that it cannot read with the latter.
_TOKEN_REFUSAL, _REQUEST_REFUSAL = "authentication token", "Traceback"
#: Seconds between tries. A new head answers "No available agent" for some seconds; a failover takes longer.
_BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0)
_GIVE_RIGHT = (
    "Give its service account the right to services/proxy that docs/how-to/cluster-per-slice.md lists"
)
_CHECK_ADDRESS = "Is this the address of the cluster's dashboard, and does the cluster run?"


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
    """`status` is PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED. Times are epoch seconds. `node_id` is the
    node of the job's driver and its log. `metadata` is what its sender says of it."""

    status: str
    message: str
    node_id: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterResources:
    """Totals of the live nodes: logical CPUs, GPUs, and GPUs by type."""

    nodes: int
    cpus: float
    gpus: float
    accelerators: dict[str, float]


def get_version() -> Flow[str]:
    """Returns Ray's version on the cluster.

    :raises RayClusterUnfitError: when it is older than the processor is tested with.
    """
    response = yield from _send(HttpRequest("GET", "/api/version", read_timeout=10))
    version = str(_json(response, "/api/version").get("ray_version", ""))
    numbers = tuple(int(n) for n in version.split(".")[:2] if n.isdigit())
    if len(numbers) == 2 and numbers < OLDEST_RAY:
        raise RayClusterUnfitError(
            f"the cluster runs Ray {version}; this provider needs at least {'.'.join(map(str, OLDEST_RAY))}",
            advice="Upgrade the cluster",
        )
    return version


def get_python_version() -> Flow[str | None]:
    """Returns the minor version of Python on the cluster, such as "3.12"; None when it is unknown."""
    response = yield from _ask_once(HttpRequest("GET", "/api/v0/cluster_metadata", read_timeout=10))
    if response is None:
        return None
    metadata = _json(response, "cluster_metadata").get("data") or {}
    version = str(metadata.get("pythonVersion") or metadata.get("python_version") or "")
    return ".".join(version.split(".")[:2]) or None


def upload_package(name: str, content: bytes) -> Flow[str]:
    """Uploads a zip of code unless the cluster has it already. Returns its URI for `runtime_env`."""
    path = f"/api/packages/gcs/{name}"
    response = yield from _send(HttpRequest("GET", path), accept={200, 404})
    if _is_unknown(response, name, path):
        yield from _send(HttpRequest("PUT", path, content=content, read_timeout=120))
    return f"gcs://{name}"


def submit(
    *,
    submission_id: str,
    entrypoint: str,
    runtime_env: dict[str, Any],
    metadata: dict[str, str],
    driver_resources: Mapping[str, Any] = MappingProxyType({}),
) -> Flow[str]:
    """Submits a job and returns its id. A job whose response was lost is not submitted twice.

    :param driver_resources: what Ray reserves for the job's process: `num_cpus`, `memory` (bytes),
        `resources`, `label_selector`. With any of them Ray places it on any node, else on the head.
    """
    body = {
        **{f"entrypoint_{name}": value for name, value in driver_resources.items()},
        "submission_id": submission_id,
        "entrypoint": entrypoint,
        "runtime_env": runtime_env,
        "metadata": metadata,
    }
    request = HttpRequest("POST", "/api/jobs/", json=body, read_timeout=60)
    response = yield from _send(request, find_result=partial(_find_job, submission_id))
    _json(response, request.path)
    return submission_id


def get_status(submission_id: str) -> Flow[JobInfo | None]:
    """Returns None when the cluster has no job of that id."""
    response = yield from _find_job(submission_id)
    if response is None:
        return None
    return _job_info(_json(response, "job"))


def list_statuses() -> Flow[dict[str, JobInfo]]:
    """Returns what `get_status` does, of every submitted job that the cluster still knows, by id."""
    return {job["submission_id"]: _job_info(job) for job in (yield from _submitted_jobs())}


def _job_info(info: Mapping[str, Any]) -> JobInfo:
    return JobInfo(
        status=str(info.get("status", "")),
        message=str(info.get("message") or ""),
        node_id=info.get("driver_node_id"),
        started_at=_seconds(info.get("start_time")),
        ended_at=_seconds(info.get("end_time")),
        metadata=info.get("metadata") or {},
    )


def _find_job(submission_id: str) -> Flow[httpx.Response | None]:
    path = f"/api/jobs/{submission_id}"
    response = yield from _send(HttpRequest("GET", path), accept={200, 404})
    return None if _is_unknown(response, submission_id, path) else response


@dataclass(frozen=True)
class LiveJobs:
    """Metadata of the jobs that have not ended, oldest first, and the seconds that the cluster took to list
    them: it reads all jobs that it ever ran. `refusal`: why nobody may list them, although the cluster is
    there."""

    metadata: list[dict[str, str]]
    seconds: float
    refusal: str = ""


def list_live_jobs() -> Flow[LiveJobs]:
    began = time.monotonic()
    filters = "".join(
        f"&filter_keys=status&filter_predicates=!%3D&filter_values={status}" for status in sorted(TERMINAL)
    )
    path = f"/api/v0/jobs?detail=1&limit=10000{filters}"
    refusal = ""
    try:
        response = yield from _send(HttpRequest("GET", path, read_timeout=60))
        listed = _json(response, "jobs")["data"]["result"]["result"]
        jobs = [(job.get("status"), job.get("start_time") or 0, job.get("metadata") or {}) for job in listed]
    except RayUnreachableError as e:
        # A proxy may let nothing pass but the Jobs API, which lists ended jobs too, or only what submits.
        if (yield from _ask_once(HttpRequest("GET", "/api/version", read_timeout=10))) is None:
            raise
        try:
            jobs = [(job.status, job.started_at or 0, job.metadata) for job in (yield from list_jobs())]
        except RayUnreachableError:
            jobs, refusal = [], str(e)
    jobs.sort(key=itemgetter(1))
    metadata = [metadata for status, _, metadata in jobs if status not in TERMINAL]
    return LiveJobs(metadata, time.monotonic() - began, refusal)


def _ask_once(request: HttpRequest) -> Flow[httpx.Response | None]:
    """Returns Ray's answer; None when there is none, for whatever reason."""
    response: Any = yield request
    is_answer = getattr(response, "status_code", None) == 200 and not _is_page(response)
    return response if is_answer else None


@dataclass(frozen=True)
class ListedJob:
    submission_id: str
    status: str
    metadata: dict[str, str]
    started_at: float | None = None


def list_jobs() -> Flow[list[ListedJob]]:
    """Returns all jobs that were submitted to the cluster and that it still knows, ended ones too."""
    return [
        ListedJob(
            str(job["submission_id"]),
            str(job.get("status", "")),
            job.get("metadata") or {},
            _seconds(job.get("start_time")),
        )
        for job in (yield from _submitted_jobs())
    ]


def _submitted_jobs() -> Flow[list[dict[str, Any]]]:
    path = "/api/jobs/"
    response = yield from _send(HttpRequest("GET", path, read_timeout=60))
    return [job for job in _json(response, path, list) if job.get("submission_id")]


def read_log_tail(submission_id: str, info: JobInfo, lines: int) -> Flow[str]:
    """Returns the end of the driver's log; "" while it has no log, or its node does not answer."""
    if info.node_id is None:
        return ""
    response: Any = yield _log_request("file", submission_id, info.node_id, f"lines={lines}")
    return str(response.text) if getattr(response, "status_code", None) == 200 else ""


def log_stream_request(submission_id: str, node_id: str, *, from_start: bool) -> HttpRequest:
    """Returns a request that streams the job's log, from its first line or its last, and does not end."""
    # Ray's other stream, the websocket /api/jobs/ID/logs/tail, always begins at the first line.
    return _log_request("stream", submission_id, node_id, f"lines={-1 if from_start else 1}&interval=1")


def _log_request(media: str, submission_id: str, node_id: str, options: str) -> HttpRequest:
    return HttpRequest(
        "GET", f"/api/v0/logs/{media}?node_id={node_id}&filename=job-driver-{submission_id}.log&{options}"
    )


def send_heartbeat(owner: str, *, confirmed: bool = False) -> Flow[None]:
    """Tells a job that a task waits for it; `processor/inference/orphan_watch.py` reads it.

    The Jobs API has no heartbeat, but stores packages of code under any name in the cluster's key-value
    store, where a job can read them.

    :param confirmed: whether Airflow has been asked, and the task does wait: the job may publish.
    """
    beat = (CONFIRMED if confirmed else "") + uuid.uuid4().hex
    yield from _send(HttpRequest("PUT", f"/api/packages/gcs/{owner}", content=beat.encode(), read_timeout=10))


def stop(submission_id: str) -> Flow[bool]:
    """Stops a job by SIGTERM, then SIGKILL. Returns False when it has ended already or does not exist."""
    path = f"/api/jobs/{submission_id}/stop"
    response = yield from _send(HttpRequest("POST", path, read_timeout=10), accept={200, 404})
    return not _is_unknown(response, submission_id, path) and bool(_json(response, "stop").get("stopped"))


def is_dead_node(node_id: str) -> Flow[bool]:
    """Returns whether the cluster says so; False where it does not know the node, or does not say."""
    path = f"/api/v0/nodes?filter_keys=node_id&filter_predicates=%3D&filter_values={node_id}"
    response = yield from _ask_once(HttpRequest("GET", path, read_timeout=10))
    if response is None:
        return False
    nodes = _json(response, "nodes")["data"]["result"]["result"]
    return [node.get("state") for node in nodes if node.get("node_id") == node_id] == ["DEAD"]


def get_resources() -> Flow[ClusterResources]:
    """Returns what the cluster has now; an autoscaler may add more."""
    response = yield from _send(HttpRequest("GET", "/api/v0/nodes?detail=1&limit=10000"))
    nodes = _json(response, "nodes")["data"]["result"]["result"]
    totals = [n["resources_total"] for n in nodes if n.get("state") == "ALIVE"]
    accelerators: dict[str, float] = {}
    for node in totals:
        for name in node:
            kind = name.removeprefix("accelerator_type:")
            if kind != name:
                accelerators[kind] = accelerators.get(kind, 0) + node.get("GPU", 0)
    return ClusterResources(
        nodes=len(totals),
        cpus=sum(n.get("CPU", 0) for n in totals),
        gpus=sum(n.get("GPU", 0) for n in totals),
        accelerators=accelerators,
    )


def _send(
    request: HttpRequest,
    *,
    accept: frozenset[int] | set[int] = frozenset({200}),
    find_result: Callable[[], Flow[httpx.Response | None]] | None = None,
) -> Flow[httpx.Response]:
    """Sends a request; retries while the cluster is unreachable or has a transient error.

    :param find_result: of a request that must not be carried out twice: finds out whether it was although
        its response was lost, and returns one that stands for it.
    """
    response: Any = None
    call = f"{request.method} {request.path.partition('?')[0]}"
    for pause in (*_BACKOFF, None):
        response = yield request
        status = getattr(response, "status_code", None)
        if status in accept and not _is_page(response):
            return response  # type: ignore[no-any-return]
        _raise_if_refused(response)
        if find_result is not None and (result := (yield from find_result())) is not None:
            return result
        if status is not None and not _is_transient(status):
            # It may be a proxy's, in front of a cluster that is being redeployed.
            advice = _CHECK_ADDRESS if status == 404 else ""
            if status == 403 and "services/proxy" in response.text:
                advice = _GIVE_RIGHT
            raise RayUnreachableError(f"{call}: {_describe(response)}", advice=advice)
        if pause is not None:
            yield Backoff(pause)
    raise RayUnreachableError(
        f"{call} failed {len(_BACKOFF) + 1} times: {_describe(response)}",
        advice=_CHECK_ADDRESS,
    )


def _is_unknown(response: httpx.Response, name: str, path: str) -> bool:
    """Whether Ray itself says that it has no such job or package.

    :raises RayUnreachableError: when a proxy says so, in front of a cluster that is being redeployed.
    """
    if response.status_code != 404:
        return False
    if name in response.text and "does not exist" in response.text:
        return True
    raise RayUnreachableError(f"{path}: {_describe(response)}", advice=_CHECK_ADDRESS)


def _is_page(response: Any) -> bool:
    """Whether something else answers in Ray's place: Ray answers in text and JSON."""
    return str(response.text).lstrip()[:1] == "<"


def _is_transient(status: int) -> bool:
    return status >= 500 or status in (408, 425, 429)


def _raise_if_refused(response: Any) -> None:
    """
    :raises RayConnectionError: when Ray itself says no, or TLS does, so that a retry cannot succeed.
    :raises RayUnreachableError: when the address leads elsewhere.
    """
    status = getattr(response, "status_code", None)
    if status is None:
        if fault := explain_tls_error(response):
            raise RayConnectionError(
                f"there is no secure connection to the cluster: {fault.sentence}", advice=fault.advice
            )
        return
    if 300 <= status < 400:
        raise RayUnreachableError(
            f"the address redirects to {response.headers.get('location')}",
            advice="Use the Jobs address itself, without a login page",
        )
    if status in (401, 403) and _TOKEN_REFUSAL in response.text:
        raise RayConnectionError(
            f"the cluster refuses the token (HTTP {status}: {response.text.strip()[:200]})",
            advice="Put the cluster's token (`ray get-auth-token` on its head) into the connection's "
            "password or auth_file",
        )
    if status == 400 and response.text.startswith(_REQUEST_REFUSAL):
        raise RayConnectionError(f"the cluster refuses the request: {_describe(response)}")


def _describe(response: Any) -> str:
    status = getattr(response, "status_code", None)
    if status is None:
        return f"{type(response).__name__}: {response}"
    # Ray responds to an error with a whole traceback, whose last line is the message.
    lines = response.text.strip().splitlines()
    return ": ".join([f"HTTP {status}", *(line[:500] for line in lines[-1:])])


def _json(response: httpx.Response, what: str, kind: type[Any] = dict) -> Any:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, kind):
        raise RayUnreachableError(
            f"the address does not speak the Ray Jobs API ({what} answered {response.text.strip()[:100]!r})",
            advice="The connection needs the dashboard's address, such as http://ray-head:8265",
        )
    return body


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if milliseconds else None
