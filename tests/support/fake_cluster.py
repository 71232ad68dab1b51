"""A real HTTP server that acts as a cluster, for tests of what a task makes of its answers. That Ray answers
so is tested in `tests/integration`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from airflow_provider_raydatallm.contract.job.phase import ADMITTED, PHASE, WAITING
from tests.support.serving import serving


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, *args: Any) -> None:
        self.lines.append(message % args)

    warning = info

    def log(self, level: int, message: str, *args: Any) -> None:
        self.lines.append(f"{logging.getLevelName(level)} {message % args}")


class FakeCluster(ThreadingHTTPServer):
    """`status`: of a job that is not among `jobs`; None: unknown. `http`: the status code of every response
    instead. `refused`: beginnings of paths that a proxy refuses. `token`: the only valid one. `log`: every
    job's lines. `cut`: whether a log stream ends after them. `jobs`: those that were submitted here, as the
    cluster lists them. `has_room`: whether a job that is submitted does not wait. `most_waiting`: jobs at
    once. `lists`: whether it lists all jobs, and `list_seconds` that this takes. `on_lost_answer`: happens
    once, when a job was taken, instead of the answer."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.status: str | None = "RUNNING"
        self.http: int | None = None
        self.refused: tuple[str, ...] = ()
        self.token: str | None = None
        self.log: list[str] = []
        self.cut = False
        self.jobs: list[dict[str, Any]] = []
        self.has_room = True
        self.most_waiting = 0
        self.lists, self.list_seconds = True, 0.0
        self.on_lost_answer: Callable[[], None] | None = None
        self.calls: list[tuple[float, str]] = []
        self.beats: list[str] = []
        #: Of the node on which all jobs run; None: it does not say.
        self.node_state: str | None = None

    def count(self, part: str) -> int:
        return sum(part in call for _, call in self.calls)

    def job(self, submission_id: str) -> dict[str, Any] | None:
        return next((job for job in self.jobs if job["submission_id"] == submission_id), None)


@contextmanager
def fake_cluster(port: int = 0) -> Iterator[FakeCluster]:
    with serving(FakeCluster(port)) as server:
        try:
            yield server
        finally:
            server.cut = True


class _Handler(BaseHTTPRequestHandler):
    server: FakeCluster

    def _sent_token(self) -> str | None:
        """As Ray reads it: the second is for who has another proxy's in the first."""
        return self.headers["Authorization"] or self.headers["X-Ray-Authorization"]

    def do_GET(self) -> None:
        server = self.server
        server.calls.append((time.monotonic(), self.path))
        if server.http is not None:
            self._answer(server.http, "Missing authentication token" if server.http == 401 else "no")
        elif server.token is not None and self._sent_token() != f"Bearer {server.token}":
            self._answer(401, "Missing authentication token")
        elif self.path.startswith(server.refused):
            self._answer(403, "RBAC: access denied")
        elif self.path == "/api/version":
            self._answer(200, json.dumps({"ray_version": "2.60.0"}))
        elif self.path.startswith("/api/packages/"):
            self._answer(200, "")
        elif self.path.startswith("/api/v0/jobs?"):
            self._answer(200, json.dumps({"data": {"result": {"result": server.jobs}}}))
        elif self.path.startswith("/api/v0/nodes?"):
            nodes = [{"node_id": "n1", "state": server.node_state}]
            listed = {"data": {"result": {"result": nodes}}}
            self._answer(200, json.dumps(listed)) if server.node_state else self._answer(404, "no")
        elif self.path == "/api/jobs/":
            time.sleep(server.list_seconds)
            self._answer(200, json.dumps(server.jobs)) if server.lists else self._answer(403, "denied")
        elif "/logs/stream" in self.path:
            self.send_response(200)
            self.end_headers()
            for line in server.log:
                self.wfile.write(f"{line}\n".encode())
                self.wfile.flush()
            while not server.cut:
                time.sleep(0.05)
        elif "/logs/file" in self.path:
            self._answer(200, "\n".join(server.log))
        else:
            job_id = self.path.rpartition("/")[2]
            job = server.job(job_id) or {"status": server.status}
            if job["status"] is None:
                self._answer(404, f"Job {job_id} does not exist")
            else:
                self._answer(200, json.dumps({"driver_node_id": "n1", **job}))

    def do_PUT(self) -> None:
        self.server.beats.append(self._body().decode())
        self.server.calls.append((time.monotonic(), f"PUT {self.path}"))
        self._answer(self.server.http or 200, "")

    def do_POST(self) -> None:
        """Takes a job, which finds room at once, or stops one."""
        server, body = self.server, self._body()
        server.calls.append((time.monotonic(), f"POST {self.path}"))
        if self.path == "/api/jobs/":
            sent = json.loads(body)
            metadata = sent["metadata"]
            if PHASE in metadata and server.has_room:
                metadata = metadata | {PHASE: ADMITTED}
            start_time = len(server.jobs) + 1
            server.jobs.append({**sent, "metadata": metadata, "status": "RUNNING", "start_time": start_time})
            waiting = sum((job["metadata"] or {}).get(PHASE) == WAITING for job in server.jobs)
            server.most_waiting = max(server.most_waiting, waiting)
            if server.on_lost_answer is not None:
                happens, server.on_lost_answer = server.on_lost_answer, None
                happens()
                return
        elif (job := server.job(self.path.split("/")[-2])) is not None:
            job["status"] = "STOPPED"
        self._answer(200, json.dumps({"stopped": True}))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None: ...
