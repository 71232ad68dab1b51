"""Serves a store as Kubernetes serves its objects, with the faults that a test asks for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from tests.support.kube import patches
from tests.support.kube.errors import ApiError
from tests.support.kube.selectors import Selector, selector
from tests.support.kube.store import RAY, RESOURCES, Object, Resource, Store

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

Result = TypeVar("Result")


@dataclass
class Fault:
    """How the API answers the next calls instead. `error`: None to do what was asked and lose the answer."""

    verb: str
    plural: str
    error: ApiError | None
    times: int


@dataclass(frozen=True)
class Call:
    """What a request asks for, read from its path."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    #: "", "status", "log" of a pod, or "proxy" of a service.
    part: str
    #: Of what the service is asked for, behind its port.
    path: str = ""

    @property
    def plural(self) -> str:
        return f"{self.resource.plural}/{self.part}" if self.part else self.resource.plural

    @property
    def is_status(self) -> bool:
        return self.part == "status"


class Kube:
    """`store`: its objects, which tests and the operator use without being counted or hit by faults.
    `calls`: verb, plural and name of each request so far; a watch counts once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: None: who calls has a certificate.
        self.token: str | None = "kube-token"
        self.calls: list[tuple[str, str, str]] = []
        #: What a pod wrote.
        self.read_log: Callable[[Object], str] = lambda pod: ""
        self._faults: list[Fault] = []
        self._delay = 0.0
        self._loop = asyncio.new_event_loop()
        self._changed, self._cut = asyncio.Event(), asyncio.Event()
        self._site: web.TCPSite | None = None
        self._collection: asyncio.TimerHandle | None = None
        app = web.Application(client_max_size=2**22)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        self._port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        store.on_change(self._notice)

    # --- for tests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, namespace: str = "default") -> dict[str, Any]:
        context = {"cluster": "fake", "user": "fake", "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": context}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {} if self.token is None else {"token": self.token}}],
        }

    def objects(self, plural: str, namespace: str = "") -> list[Object]:
        return self.store.objects(plural, namespace)

    def fail(
        self,
        verb: str,
        plural: str,
        status: int,
        reason: str = "",
        message: str = "",
        times: int = 1,
        retry_after: int | None = None,
    ) -> None:
        """Answers the next calls with this error; what Kubernetes says of the status, where nothing is given.

        :param retry_after: seconds, with a status like 429
        """
        details = {} if retry_after is None else {"retryAfterSeconds": retry_after}
        self._faults.append(Fault(verb, plural, ApiError(status, message, reason, details), times))

    def lose_answers(self, verb: str, plural: str, times: int = 1) -> None:
        """Does what the next calls ask, and closes the connection instead of answering."""
        self._faults.append(Fault(verb, plural, None, times))

    def forgive(self) -> None:
        """Drops the faults that have not happened."""
        self._faults.clear()

    def cut_watches(self) -> None:
        self._ask(self._cut_watches())

    def slow(self, seconds: float) -> None:
        """Delays every answer, until it is set to 0."""
        self._delay = seconds

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuses connections for as long as the block runs."""
        self._ask(self._close_port())
        try:
            yield
        finally:
            self._ask(self._open_port())

    # --- its thread

    def start(self) -> None:
        self._thread.start()
        self._ask(self._runner.setup())
        self._ask(self._open_port())

    def stop(self) -> None:
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _ask(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open_port(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def _end(self) -> None:
        await self._close_port()
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _close_port(self) -> None:
        await self._cut_watches()
        if self._site is not None:
            await self._site.stop()
            self._site = None
        if self._runner.server is not None:
            for connection in self._runner.server.connections:
                connection.force_close()
                if connection.transport is not None:
                    connection.transport.abort()

    async def _cut_watches(self) -> None:
        self._cut.set()
        self._cut = asyncio.Event()

    def _notice(self) -> None:
        """Wakes watches and the garbage collector, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if self._collection is None:
            self._collection = self._loop.call_later(0.01, self._collect)

    def _collect(self) -> None:
        self._collection = None
        self.store.collect_garbage()

    # --- requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            headers = {}
            if (seconds := error.details.get("retryAfterSeconds")) is not None:
                headers["Retry-After"] = str(seconds)
            return web.json_response(error.status(), status=error.code, headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self._delay:
            await asyncio.sleep(self._delay)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise ApiError(401)
        if (found := self._discovery(request.path)) is not None:
            return web.json_response(found)
        call = self._call(request)
        if call is None:
            return web.Response(status=404, text="404 page not found\n")
        body = None if call.part == "proxy" else await _body(request)
        name = call.name
        if call.verb == "create" and isinstance(body, dict):
            name = (body.get("metadata") or {}).get("name") or ""
        self.calls.append((call.verb, call.plural, name))
        fault = self._next_fault(call)
        if fault is not None and fault.error is not None:
            raise fault.error
        if call.verb == "watch":
            return await self._watch(request, call)
        if call.part == "proxy":
            return await self._pass_on(request, call)
        if call.part == "log":
            return web.Response(text=self.read_log(self.store.get("pods", call.namespace, name)))
        status, answer = self._do(request, call, body)
        if fault is not None and request.transport is not None:
            request.transport.abort()
        return web.json_response(answer, status=status)

    async def _pass_on(self, request: web.Request, call: Call) -> web.StreamResponse:
        """Answers what the service does; who called has said so to Kubernetes alone."""
        self.store.get("services", call.namespace, call.name)
        own = {"authorization", "host", "content-length", "transfer-encoding"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in own}
        url = f"http://127.0.0.1:{call.path}"
        body = await request.read()
        try:
            async with (
                aiohttp.ClientSession(auto_decompress=False) as session,
                session.request(
                    request.method, URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
                ) as answer,
            ):
                kind = {"Content-Type": answer.headers.get("Content-Type", "text/plain")}
                response = web.StreamResponse(status=answer.status, headers=kind)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientConnectorError as error:
            raise ApiError(503, f"error trying to reach service: {error}") from error

    def _next_fault(self, call: Call) -> Fault | None:
        for fault in self._faults:
            if fault.verb in (call.verb, "*") and fault.plural in (call.plural, "*"):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def _discovery(self, path: str) -> Object | None:
        groups = {"/api/v1": "", f"/apis/{RAY}/v1": RAY}
        if path in groups:
            group = groups[path]
            listed = [
                {"name": r.plural, "kind": r.kind, "namespaced": r.namespaced, "singularName": r.kind.lower()}
                | {"verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]}
                for r in RESOURCES.values()
                if r.group == group
            ]
            version = f"{group}/v1" if group else "v1"
            return {"kind": "APIResourceList", "groupVersion": version, "resources": listed}
        if path == "/apis":
            preferred = {"groupVersion": f"{RAY}/v1", "version": "v1"}
            group_item = {"name": RAY, "versions": [preferred], "preferredVersion": preferred}
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group_item]}
        if path == "/version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        return None

    def _call(self, request: web.Request) -> Call | None:
        """Returns None for a path that Kubernetes does not know."""
        match request.path.strip("/").split("/"):
            case ["api", "v1", *rest]:
                group = ""
            case ["apis", group, "v1", *rest]:
                pass
            case _:
                return None
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        verb = _VERBS.get(request.method, "")
        match rest:
            case ["services", address, "proxy", *_]:
                service, _, port = address.partition(":")
                path = request.raw_path.partition("/proxy")[2]
                return Call(verb, RESOURCES["services"], namespace, service, "proxy", f"{port}{path}")
        resource = RESOURCES.get(rest[0]) if rest else None
        if resource is None or resource.group != group or rest[2:] not in ([], ["status"], ["log"]):
            return None
        if group and not self.store.kuberay:
            return None
        name = rest[1] if len(rest) > 1 else ""
        if verb == "get" and request.query.get("watch") in ("true", "True", "1"):
            verb = "watch"
        elif verb == "get" and not name:
            verb = "list"
        if not verb or (not name) != (verb in ("create", "list", "watch")):
            raise ApiError(405)
        return Call(verb, resource, namespace, name, part=rest[2] if len(rest) == 3 else "")

    def _do(self, request: web.Request, call: Call, body: Any) -> tuple[int, Object]:
        store, plural, namespace, name = self.store, call.resource.plural, call.namespace, call.name
        match call.verb:
            case "get":
                return 200, store.get(plural, namespace, name)
            case "list":
                metadata = {"resourceVersion": store.version}
                items = store.objects(plural, namespace, _selector(request, call.resource))
                kind = {"kind": f"{call.resource.kind}List", "apiVersion": call.resource.api_version}
                return 200, {**kind, "metadata": metadata, "items": items}
            case "create":
                is_strict = request.query.get("fieldValidation") == "Strict"
                is_dry_run = request.query.get("dryRun") == "All"
                made = store.create(plural, namespace, body, is_strict=is_strict, is_dry_run=is_dry_run)
                return 201, made
            case "update":
                if (body.get("metadata") or {}).get("name") != name:
                    raise ApiError(400, "the name of the object does not match the name on the URL")
                return 200, store.update(plural, namespace, body, status=call.is_status)
            case "patch":
                change = _patch(call.resource, request.content_type, body)
                return 200, store.patch(plural, namespace, name, change, status=call.is_status)
        return 200, self._delete(request, call, body)

    def _delete(self, request: web.Request, call: Call, body: Any) -> Object:
        options = {**(body or {}), **request.query}
        preconditions = options.get("preconditions") or {}
        deleted = self.store.delete(
            call.resource.plural,
            call.namespace,
            call.name,
            uid=preconditions.get("uid"),
            version=preconditions.get("resourceVersion"),
            propagation=options.get("propagationPolicy") or "Background",
        )
        if deleted["metadata"].get("finalizers") or call.resource.plural == "pods":
            return deleted
        uid = deleted["metadata"]["uid"]
        details = {"name": call.name, "group": call.resource.group, "kind": call.resource.plural, "uid": uid}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        """Tells what is there, if no version is given, and then every change until someone ends it."""
        seconds = float(request.query.get("timeoutSeconds") or 1800)
        until = self._loop.time() + seconds
        cut = self._cut
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        with suppress(ConnectionResetError):  # who watched has gone
            await response.prepare(request)
            async for event in self._events(request, call, cut, until):
                await response.write(json.dumps(event).encode() + b"\n")
            await response.write_eof()
        return response

    async def _events(
        self, request: web.Request, call: Call, cut: asyncio.Event, until: float
    ) -> AsyncIterator[dict[str, Any]]:
        selects = _selector(request, call.resource)
        version = int(request.query.get("resourceVersion") or "0")
        if not version:
            version = int(self.store.version)
            for item in self.store.objects(call.resource.plural, call.namespace, selects):
                yield {"type": "ADDED", "object": item}
        while not cut.is_set() and self._loop.time() < until:
            changed = self._changed
            try:
                changes = self.store.changes_since(version)
            except ApiError as error:
                yield {"type": "ERROR", "object": error.status()}
                return
            for change in changes:
                version = change.version
                namespace = change.after["metadata"].get("namespace", "")
                if change.plural == call.resource.plural and call.namespace in ("", namespace):
                    event = change.event(selects)
                    if event is not None:
                        yield event
            waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(cut.wait())]
            seconds = max(0.0, until - self._loop.time())
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


def _selector(request: web.Request, resource: Resource) -> Selector:
    query = request.query
    return selector(query.get("labelSelector", ""), query.get("fieldSelector", ""), resource.selectable)


async def _body(request: web.Request) -> Any:
    text = await request.text()
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise ApiError(400, f"the object provided is unrecognized: {error}") from error


def _patch(resource: Resource, content_type: str, body: Any) -> Callable[[Object], Object]:
    is_list = content_type == "application/json-patch+json"
    accepted = ["application/json-patch+json", "application/merge-patch+json"]
    if not resource.group:
        accepted.append("application/strategic-merge-patch+json")
    if content_type not in accepted:
        what = "the body of the request was in an unknown format - accepted media types include:"
        raise ApiError(415, f"{what} {', '.join(accepted)}")
    if isinstance(body, list) != is_list:
        raise ApiError(400, f"error decoding patch: cannot unmarshal {'object' if is_list else 'array'}")
    return lambda item: patches.apply(item, body) if is_list else patches.merge(item, body)


@contextmanager
def kube_server(namespaces: Iterable[str] = ("ml",), kuberay: str = "1.7") -> Iterator[Kube]:
    """:param kuberay: the version whose CRDs are installed, "" for none; what it does not know is dropped"""
    kube = Kube(Store(namespaces, kuberay))
    kube.start()
    try:
        yield kube
    finally:
        kube.stop()
