"""A real Ray head behind a door: an HTTP address and a token that stay the same while the head dies and
comes back, and a token that can be revoked while jobs run, which Ray itself cannot do.

The door passes every request on as it is but for its token: the door's own is replaced by the head's, any
other by one that the head refuses. While the head is down nobody listens at the door.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead, ensure_head, free_ports, stop_head
from airflow_provider_raydatallm.clusters.embedded.processes import find_processes
from airflow_provider_raydatallm.hooks.jobs_api import TERMINAL
from tests.support.airflow_rest import LIMIT

#: Logical: enough for the small jobs of as many slices as Airflow runs at once.
_CPUS = 32
#: Not passed on: they are of one connection.
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host"}
)


class Cluster:
    """Nothing runs before `start`; `close` ends it all. `calls`: method and path of what came through the
    door."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
        [self._port] = free_ports(1)
        self.address = f"http://127.0.0.1:{self._port}"
        self.token = secrets.token_urlsafe(24)
        self.calls: list[str] = []
        self._accepted = {self.token}
        #: Status and text that answer in the head's place.
        self.page: tuple[int, str] | None = None
        #: Set unless jobs that are submitted have to wait at the door.
        self.lets_jobs_in = threading.Event()
        self.lets_jobs_in.set()
        self._head: LocalHead | None = None
        self._door: ThreadingHTTPServer | None = None

    @property
    def connection(self) -> str:
        """The Airflow connection to it, as JSON."""
        return json.dumps({"conn_type": "ray", "host": self.address, "password": self.token})

    def start(self) -> None:
        """Start the head, or another after `kill`: it knows nothing of the jobs of the one before."""
        self._head = ensure_head(self.folder, min_cpus=_CPUS, timeout=LIMIT)
        self._open()

    def kill(self) -> None:
        """SIGKILL every process of the head, jobs and engines included, at once: none can tell of another's
        end."""
        self._shut()
        while members := find_processes(self.folder, {}):
            for end in (psutil.Process.suspend, psutil.Process.kill):
                for process in members.values():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        end(process)
        self._head = None

    def away(self) -> None:
        """Nobody listens at the door; the head and its jobs run on. `back` ends it."""
        self._shut()

    def replace(self, status: int, page: str) -> None:
        """Something else answers in the head's place, such as an ingress, until `back`."""
        self.page = status, page

    def back(self) -> None:
        self.page = None
        self.lets_jobs_in.set()
        self._open()

    def revoke(self) -> None:
        """The head refuses the token from now on, until `grant`."""
        self._accepted.clear()

    def grant(self) -> None:
        self._accepted.add(self.token)

    def close(self) -> None:
        self.kill()
        stop_head(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- Jobs, past the door ---

    def jobs(self, **metadata: str) -> list[dict[str, Any]]:
        """All jobs that the head knows and whose metadata say so, oldest first: `jobs(dag_id=...,
        slice_key=...)`."""
        answer = self._ask("GET", "/api/jobs/")
        jobs = [j for j in answer.json() if metadata.items() <= (j["metadata"] or {}).items()]
        return sorted(jobs, key=lambda j: j["start_time"] or 0)

    def running(self, **metadata: str) -> list[str]:
        """Ids of jobs that are not over."""
        return [j["submission_id"] for j in self.jobs(**metadata) if j["status"] not in TERMINAL]

    def log(self, submission_id: str) -> str:
        """What a job's driver wrote so far."""
        return str(self._ask("GET", f"/api/jobs/{submission_id}/logs").json()["logs"])

    def stop_job(self, submission_id: str) -> None:
        """As somebody does in Ray's dashboard."""
        self._ask("POST", f"/api/jobs/{submission_id}/stop")

    def _ask(self, method: str, path: str) -> httpx.Response:
        assert self._head is not None, "the head is down"
        headers = {"Authorization": f"Bearer {self._head.token}"}
        answer = httpx.request(
            method, f"{self._head.address}{path}", headers=headers, timeout=120, trust_env=False
        )
        return answer.raise_for_status()

    # --- The door ---

    def _open(self) -> None:
        assert self._head is not None, "the head is down"
        self._shut()
        self._door = _Door(("127.0.0.1", self._port), self, self._head)
        threading.Thread(target=self._door.serve_forever, args=(0.05,), daemon=True).start()

    def _shut(self) -> None:
        if self._door is not None:
            self._door.shutdown()
            self._door.server_close()
            self._door = None


class _Door(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], cluster: Cluster, head: LocalHead) -> None:
        super().__init__(address, _Visitor)
        self.cluster, self.head = cluster, head
        self.client = httpx.Client(base_url=head.address, timeout=120, trust_env=False)

    def server_close(self) -> None:
        super().server_close()
        self.client.close()


class _Visitor(BaseHTTPRequestHandler):
    server: _Door

    def _pass_on(self) -> None:
        door = self.server
        door.cluster.calls.append(f"{self.command} {self.path}")
        if door.cluster.page is not None:
            status, page = door.cluster.page
            self.send_response(status)
            self.end_headers()
            self.wfile.write(page.encode())
            return
        if self.command == "POST" and self.path == "/api/jobs/":
            door.cluster.lets_jobs_in.wait()
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        known = {f"Bearer {token}" for token in door.cluster._accepted}
        if "Authorization" in headers:
            right = headers["Authorization"] in known
            headers["Authorization"] = f"Bearer {door.head.token if right else 'revoked'}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # A log that is followed comes in pieces, as long as somebody reads it.
        timeout = httpx.Timeout(120, read=None if "/logs/stream" in self.path else 120)
        passed = door.client.stream(self.command, self.path, headers=headers, content=body, timeout=timeout)
        try:
            with passed as answer:
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                for piece in answer.iter_bytes():
                    self.wfile.write(piece)
                    self.wfile.flush()
        except (httpx.HTTPError, RuntimeError, OSError):
            return  # the head died, or the door was shut, or nobody reads on: the connection ends

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what came through is in `calls`."""
