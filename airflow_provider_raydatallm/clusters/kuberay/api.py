"""Calls of the Kubernetes API, through Airflow's connection to Kubernetes: RayJobs of one namespace, and what
tells why one does not start. Blocks."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from airflow_provider_raydatallm.clusters.base import Gateway
from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayUnreachableError,
)

T = TypeVar("T")

GROUP, VERSION, RAY_JOBS = "ray.io", "v1", "rayjobs"
#: Seconds to connect, and for an answer.
_TIMEOUT = (10.0, 30.0)
#: Seconds after which a watch is asked for anew, so that one whose other end has gone does not last.
_WATCH_SECONDS = 300
#: For so long credentials are used before they are read anew.
_HOOK_SECONDS = 60.0
_EXTRA = "pip install 'airflow-provider-raydatallm[kuberay]' on Airflow's workers and triggerers"

#: Until when they are used, by process, connection and what that says.
_hooks: dict[tuple[int, str, str], tuple[float, Any]] = {}


class ConflictError(RayUnreachableError):
    """Somebody else has made, or changed, the object meanwhile: who decides again may succeed."""


class ExpiredError(Exception):
    """The version from which to watch is too old."""


class KubernetesApi:
    """
    :param namespace: "" for the connection's.
    """

    def __init__(self, conn_id: str, namespace: str = "") -> None:
        self.conn_id, self._namespace = conn_id, namespace
        self._known: tuple[float, Any] | None = None

    @property
    def label(self) -> str:
        return f"Kubernetes connection {self.conn_id!r}"

    @cached_property
    def namespace(self) -> str:
        return self._namespace or self._hook.get_namespace() or "default"

    def create(self, body: Mapping[str, Any]) -> Any:
        """:raises ConflictError: when there is one of that name."""
        return self._call(self._objects.create_namespaced_custom_object, body=body)

    def get(self, name: str) -> Any:
        return self._call(self._objects.get_namespaced_custom_object, name=name, may_miss=True)

    def patch(self, name: str, changes: Mapping[str, Any]) -> Any:
        """Merges changes into it; with its `resourceVersion`, only as long as it is that one.

        :raises ConflictError: when it is another one by now.
        """
        # A dict, which the client sends as changes to merge.
        return self._call(
            self._objects.patch_namespaced_custom_object, name=name, body=dict(changes), may_miss=True
        )

    def delete(self, name: str, resource_version: str = "", uid: str = "") -> None:
        """Deletes it and what belongs to it, if it is there.

        :param resource_version, uid: deletes only this one; "" for any.
        :raises ConflictError: when it is another one by now.
        """
        wanted = {key: v for key, v in (("resourceVersion", resource_version), ("uid", uid)) if v}
        only = {"preconditions": wanted} if wanted else {}
        self._call(
            self._objects.delete_namespaced_custom_object,
            name=name,
            body={"propagationPolicy": "Background", **only},
            may_miss=True,
        )

    def find(self, labels: str) -> tuple[list[dict[str, Any]], str]:
        """Returns those with such labels, and the version from which to watch them."""
        found = self._call(self._objects.list_namespaced_custom_object, label_selector=labels)
        return list(found["items"]), str(found["metadata"]["resourceVersion"])

    def watch(self, labels: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields their changes; ends after some minutes.

        :raises ExpiredError: when they are to be listed anew.
        """
        from kubernetes import watch

        stream = watch.Watch().stream(
            self._objects.list_namespaced_custom_object,
            GROUP, VERSION, self.namespace, RAY_JOBS,
            label_selector=labels,
            resource_version=version,
            timeout_seconds=_WATCH_SECONDS,
            _request_timeout=(_TIMEOUT[0], _WATCH_SECONDS + _TIMEOUT[1]),
        )  # fmt: skip
        events = iter(stream)
        while True:
            try:
                event = next(events)
            except StopIteration:
                return
            except Exception as e:
                raise self._error_of(e, "watch", RAY_JOBS) from e
            yield str(event["type"]), event["object"]

    def secret(self, name: str) -> dict[str, str] | None:
        # Kubernetes' client writes to the log, at DEBUG, what it reads.
        found = self._call(
            self._core.read_namespaced_secret, name=name, may_miss=True, of="secrets", _preload_content=False
        )
        if found is None:
            return None
        data = json.loads(found.data).get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def way_to(self, service: str, port: int) -> tuple[str, Gateway]:
        """Returns the address by which the API server passes calls on to a service, and what it wants of who
        calls: its token as it is now."""
        from requests.utils import should_bypass_proxies  # as Kubernetes' client decides it

        configuration = self._reach(lambda: self._hook.api_client.configuration)
        token = self._reach(lambda: configuration.auth_settings().get("BearerToken", {}).get("value"))
        no_proxy = configuration.no_proxy or ""
        is_direct = not configuration.proxy or should_bypass_proxies(configuration.host, no_proxy)
        address = f"{configuration.host}/api/v1/namespaces/{self.namespace}/services/{service}:{port}/proxy"
        return address, Gateway(
            headers={"Authorization": token} if token else {},
            verify=bool(configuration.verify_ssl),
            ca_file=configuration.ssl_ca_cert,
            client_cert=configuration.cert_file,
            client_key=configuration.key_file,
            server_name=configuration.tls_server_name,
            proxy=None if is_direct else configuration.proxy,
        )

    def pods(self, labels: str) -> list[dict[str, Any]]:
        return self._items(self._core.list_namespaced_pod, "pods", label_selector=labels)

    def events(self, kind: str, name: str, which: str) -> list[dict[str, Any]]:
        """Returns the events of an object, the newest last.

        :param name: "" for all of the kind.
        :param which: a field's value, such as `type=Warning`.
        """
        of_name = f",involvedObject.name={name}" if name else ""
        about = f"involvedObject.kind={kind}{of_name},{which}"
        found = self._items(self._core.list_namespaced_event, "events", field_selector=about)
        return sorted(
            found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")
        )

    def _items(self, call: Callable[..., Any], of: str, **selector: Any) -> list[dict[str, Any]]:
        found = self._call(call, of=of, **selector)
        items = self._hook.api_client.sanitize_for_serialization(found)["items"]
        return list(items)

    def _call(
        self, call: Callable[..., Any], *, of: str = RAY_JOBS, may_miss: bool = False, **arguments: Any
    ) -> Any:
        """:param may_miss: returns None where there is no such object."""
        place = (GROUP, VERSION, self.namespace, RAY_JOBS) if of == RAY_JOBS else ()
        if not place:
            arguments["namespace"] = self.namespace
        try:
            answer = call(*place, **arguments, _request_timeout=_TIMEOUT)
        except Exception as e:
            if may_miss and getattr(e, "status", None) == 404:
                return None
            raise self._error_of(e, call.__name__.partition("_")[0], of) from e
        if place and not isinstance(answer, Mapping):
            raise RayUnreachableError(f"{self.label}: something else than the API server answers")
        return answer

    def _error_of(self, error: Exception, verb: str, of: str) -> Exception:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        if isinstance(error, HTTPError | OSError):
            return RayUnreachableError(
                f"{self.label}: the API server does not answer ({type(error).__name__})"
            )
        if isinstance(error, AttributeError) and isinstance(error.__context__, ApiException):
            error = error.__context__  # without a body, which Kubernetes' client decodes
        if not isinstance(error, ApiException):
            return error
        status, words = error.status, _words(error)
        what = f"{self.label}: it refuses to {verb} {of} in namespace {self.namespace!r}: {words}"
        if status == 409:
            return ConflictError(f"{self.label}: {words}")
        if status == 410:
            return ExpiredError(words)
        if status == 404 and of == RAY_JOBS and "namespace" not in words.lower():
            return RayConnectionError(
                f"{self.label}: it knows no {of}.{GROUP}",
                advice="Install KubeRay 1.6 or newer there, with the resources of its chart",
            )
        if status == 0:
            return RayUnreachableError(f"{self.label}: the API server cannot be reached: {words}")
        if status == 401:  # a program that says a token may have failed
            _hooks.clear()
            self._known = None
            return RayUnreachableError(what, advice=f"Is the token of connection {self.conn_id!r} valid?")
        if status == 429 or status >= 500:
            return RayUnreachableError(f"{self.label}: the API server fails with {status}: {words}")
        advice = {
            403: "Give its service account the rights that docs/how-to/cluster-per-slice.md lists",
            404: "Make the namespace, or correct cluster.namespace",
        }.get(status, "")
        return RayConnectionError(what, advice=advice)

    @property
    def _hook(self) -> Any:
        """With credentials as they were a moment ago, also of a watch that lasts."""
        now = time.monotonic()
        if self._known is None or self._known[0] < now:
            self._known = (now + _HOOK_SECONDS, self._open_hook())
        return self._known[1]

    def _open_hook(self) -> Any:
        try:
            from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
            from kubernetes.client import Configuration
        except ImportError:
            raise RayConnectionError(
                "a cluster on Kubernetes needs Airflow's provider for it, which is not installed here",
                advice=_EXTRA,
            ) from None
        hook = KubernetesHook(conn_id=self.conn_id)
        try:
            kind = hook.get_connection(self.conn_id).conn_type
            if kind not in ("kubernetes", "", None):
                raise RayConnectionError(f"{self.label} is of type {kind!r}", advice="Name one to Kubernetes")
            is_inside = hook._get_field("in_cluster")  # type: ignore[no-untyped-call]
        except AirflowNotFoundException as e:
            raise RayConnectionNotFoundError(
                f"there is no connection {self.conn_id!r}, or a secrets backend is away",
                advice="Add one of type 'kubernetes', such as "
                f"AIRFLOW_CONN_{self.conn_id.upper()}='kubernetes://?in_cluster=true'",
            ) from e
        if not is_inside:  # else the process's own configuration is read, of which there is one
            hook.client_configuration = Configuration()
            hook.client_configuration.retries = False  # here, by who asks
        return _latest(hook)

    @property
    def _objects(self) -> Any:
        return self._reach(lambda: self._hook.custom_object_client)

    @property
    def _core(self) -> Any:
        return self._reach(lambda: self._hook.core_v1_client)

    def _reach(self, read: Callable[[], T]) -> T:
        _ = self._hook  # which says what is to be installed
        from kubernetes.config import ConfigException

        try:
            return read()
        except (AirflowException, ConfigException, OSError, ValueError) as e:
            raise RayConnectionError(
                f"{self.label}: it does not say how to reach Kubernetes: {plain_text(str(e))}",
                advice="Set kube_config_path, kube_config or in_cluster in its extra",
            ) from e


def _latest(hook: Any) -> Any:
    """Returns the hook that this process has had of the same connection a moment ago, if any: its token may
    be a program's, which takes seconds, and says another each time."""
    now = time.monotonic()
    for old in [known for known, (until, _) in list(_hooks.items()) if until < now]:
        _hooks.pop(old, None)
    key = (os.getpid(), hook.conn_id, json.dumps(hook.conn_extras, sort_keys=True, default=str))
    return _hooks.setdefault(key, (now + _HOOK_SECONDS, hook))[1]


def _words(error: Any) -> str:
    """Kubernetes' own."""
    try:
        words = json.loads(error.body)["message"]
    except (ValueError, TypeError, KeyError):
        words = error.reason
    return plain_text(str(words))[:500]
