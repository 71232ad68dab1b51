"""Airflow as people and programs reach it: its public REST API, with the token of a person who logged in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from airflow.sdk import exceptions

T = TypeVar("T")

#: States of a task, or of a run, that last.
FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
#: Seconds that something may take before it counts as never coming: a busy machine is slow at everything.
LIMIT = 300.0
#: Between two looks; a look costs the API server some 10 ms of CPU.
_INTERVAL = 0.3


@dataclass(frozen=True)
class Task:
    """A task of a run. All DAGs here have one task that matters, `ask`."""

    dag_id: str
    run_id: str
    task_id: str = "ask"
    map_index: int = -1

    def at(self, map_index: int) -> Task:
        return replace(self, map_index=map_index)

    @property
    def run_path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}"

    @property
    def path(self) -> str:
        return f"{self.run_path}/taskInstances/{self.task_id}"

    @property
    def indexed_path(self) -> str:
        return f"{self.path}/{self.map_index}" if self.map_index >= 0 else self.path


class RestApi:
    """Waits are in seconds and raise TimeoutError, which says what was there instead.

    :raises httpx.HTTPStatusError: when Airflow refuses a call; its reason is a note of the error.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url, self._login = url, {"username": user, "password": password}
        self._client = httpx.Client(base_url=f"{url}/api/v2", timeout=120, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, path: str, **given: Any) -> Any:
        """One call; a server that is being restarted is waited for."""
        if "authorization" not in self._client.headers:
            answer = self._send("POST", f"{self.url}/auth/token", json=self._login)
            self._client.headers["authorization"] = f"Bearer {answer.json()['access_token']}"
        answer = self._send(method, path, **given)
        return answer.json() if answer.content else None

    def _send(self, method: str, path: str, **given: Any) -> httpx.Response:
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                answer = self._client.request(method, path, **given)
                answer.raise_for_status()
                return answer
            except httpx.ConnectError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            except httpx.HTTPStatusError as e:
                e.add_note(e.response.text[:2000])
                raise

    # --- Runs ---

    def trigger(
        self, dag_id: str, *, conf: dict[str, Any] | None = None, logical_date: str | None = None,
        partition_key: str | None = None, run_id: str | None = None,
    ) -> Task:  # fmt: skip
        """Start a run as the UI's form does. `logical_date`: ISO 8601; the form sends now."""
        body = {
            "conf": conf or {}, "logical_date": logical_date, "partition_key": partition_key,
            "dag_run_id": run_id,
        }  # fmt: skip
        given = {k: v for k, v in body.items() if v is not None or k == "logical_date"}
        return Task(dag_id, self.call("POST", f"/dags/{dag_id}/dagRuns", json=given)["dag_run_id"])

    def asset_id(self, name: str) -> int:
        found = self.call("GET", "/assets", params={"name_pattern": name})["assets"]
        return next(int(asset["id"]) for asset in found if asset["name"] == name)

    def materialize(self, asset: str, conf: dict[str, Any] | None = None) -> Task:
        """As the button of an asset in the UI does, whose form may name no logical date."""
        run = self.call("POST", f"/assets/{self.asset_id(asset)}/materialize", json={"conf": conf or {}})
        return Task(run["dag_id"], run["dag_run_id"])

    def create_asset_event(self, asset: str) -> None:
        self.call("POST", "/assets/events", json={"asset_id": self.asset_id(asset)})

    def run(self, task: Task) -> dict[str, Any]:
        return dict(self.call("GET", task.run_path))

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """All runs of a DAG, by what they own: partition key or logical date, then by start."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns", params={"limit": 100})["dag_runs"]
        return sorted(found, key=lambda r: (r["partition_key"] or r["logical_date"] or "", r["queued_at"]))

    def wait_runs(self, dag_id: str, count: int, timeout: float = LIMIT) -> list[dict[str, Any]]:
        """Wait until a DAG has `count` runs and all of them are over."""

        def look() -> list[dict[str, Any]] | None:
            runs = self.runs(dag_id)
            return runs if len(runs) >= count and all(r["state"] in FINISHED for r in runs) else None

        def seen() -> str:
            return str([(r["dag_run_id"], r["state"]) for r in self.runs(dag_id)])

        return wait_for(look, timeout, f"{count} finished runs of {dag_id}", seen)

    def delete_run(self, task: Task) -> None:
        """Airflow refuses (HTTP 409) while the run is running: mark it first."""
        self.call("DELETE", task.run_path)

    def mark_run(self, task: Task, state: str) -> None:
        """`success`, `failed` or `queued`, as the run's button in the UI does: its unfinished tasks
        follow."""
        self.call("PATCH", task.run_path, json={"state": state})

    def pause(self, dag_id: str, paused: bool = True) -> None:
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})

    def wait_dags(self, dag_ids: set[str], timeout: float = LIMIT) -> None:
        """Wait until the DAG processor has stored these DAGs."""

        def known() -> set[str]:
            return {d["dag_id"] for d in self.call("GET", "/dags", params={"limit": 100})["dags"]}

        def errors() -> str:
            found = self.call("GET", "/importErrors")["import_errors"]
            return "\n".join(e["stack_trace"] for e in found) or f"known are {sorted(known())}"

        wait_for(lambda: known() >= dag_ids or None, timeout, f"DAGs {sorted(dag_ids)}", errors)

    def backfill(
        self, dag_id: str, first: str, last: str, *, reprocess: str = "none", max_active_runs: int = 4,
        conf: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Backfill the days from `first` to `last`, both included, as the UI's form does.

        :param reprocess: which runs that exist run again: `none`, `failed` or `completed` (those that failed
            too)
        """
        body = {
            "dag_id": dag_id, "from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z",
            "reprocess_behavior": reprocess, "max_active_runs": max_active_runs, "dag_run_conf": conf or {},
        }  # fmt: skip
        self.call("POST", "/backfills", json=body)

    def backfills(self, dag_id: str) -> list[dict[str, Any]]:
        return list(self.call("GET", "/backfills", params={"dag_id": dag_id})["backfills"])

    def end_backfills(self, dag_id: str) -> None:
        """Airflow notices each half a minute that a backfill's runs are over, and allows one backfill of a
        DAG at a time: cancelling one whose runs are over ends it at once."""
        for backfill in self.backfills(dag_id):
            if backfill["completed_at"] is None:
                self.call("PUT", f"/backfills/{backfill['id']}/cancel")

    # --- Tasks ---

    def get(self, task: Task) -> dict[str, Any]:
        """Its latest try: `state`, `try_number`, `pid` of the process that runs it, `trigger`, ..."""
        return dict(self.call("GET", task.indexed_path))

    def tasks(self, task: Task) -> list[dict[str, Any]]:
        """All task instances of the run, mapped ones by their index."""
        found = self.call("GET", f"{task.run_path}/taskInstances", params={"limit": 100})["task_instances"]
        return sorted(found, key=lambda t: (t["task_id"], t["map_index"]))

    def tries(self, task: Task) -> list[dict[str, Any]]:
        """Every try, oldest first; none while Airflow makes a new one of it."""
        try:
            found = self.call("GET", f"{task.indexed_path}/tries")["task_instances"]
        except httpx.HTTPStatusError as e:
            if e.response.status_code == 404:
                return []
            raise
        return sorted(found, key=lambda t: t["try_number"])

    def wait(
        self, task: Task, *states: str, try_number: int | None = None, timeout: float = LIMIT
    ) -> dict[str, Any]:
        """Wait until the task is in one of `states`, in that try or a later one; return it.

        A task that ends in another state ends the wait: `AssertionError`, with the end of its log.
        """

        def there(found: dict[str, Any]) -> bool:
            return try_number is None or found["try_number"] >= try_number

        def look() -> dict[str, Any] | None:
            found = self._maybe(task)
            if found is None or not there(found):
                return None
            if found["state"] in states:
                return found
            if found["state"] in FINISHED and try_number is None:
                tail = self.log(task)[-3000:]
                raise AssertionError(f"{task} is {found['state']}, not {' or '.join(states)}: ...{tail}")
            return None

        def seen() -> str:
            found = self._maybe(task) or {}
            return f"it is {found.get('state')} in try {found.get('try_number')}: ...{self.log(task)[-3000:]}"

        return wait_for(look, timeout, f"{task} in {states}", seen)

    def finish(self, task: Task, timeout: float = LIMIT) -> str:
        """Wait until the task is over; return its state."""
        return str(self.wait(task, *FINISHED, timeout=timeout)["state"])

    def _maybe(self, task: Task) -> dict[str, Any] | None:
        """None while the run's tasks are being made, or after the run was deleted."""
        try:
            return self.get(task)
        except httpx.HTTPStatusError as e:
            if e.response.status_code == 404:
                return None
            raise

    def clear(self, task: Task) -> None:
        """Clear the task and set its run going again, as the UI's button does.

        A run that is over but for Airflow's note of it is waited for: the scheduler that writes the note may
        have looked before the clear, and then nobody schedules what was cleared.
        """
        if all(found["state"] in FINISHED for found in self.tasks(task)):
            wait_for(lambda: self.run(task)["state"] in FINISHED or None, LIMIT, f"{task} to end")
        chosen = [task.task_id] if task.map_index < 0 else [[task.task_id, task.map_index]]
        body = {"dry_run": False, "dag_run_id": task.run_id, "task_ids": chosen, "only_failed": False}
        self.call("POST", f"/dags/{task.dag_id}/clearTaskInstances", json=body)

    def mark(self, task: Task, state: str) -> None:
        """`success`, `failed` or `skipped`, as the UI's buttons do."""
        self.call("PATCH", task.indexed_path, json={"new_state": state})

    def wait_asked(self, task: Task) -> dict[str, Any]:
        """Wait until the task's latest try asks people something; return that."""

        def look() -> dict[str, Any] | None:
            try:
                asked = self.call("GET", f"{task.path}/{task.map_index}/hitlDetails")
            except httpx.HTTPStatusError as e:
                if e.response.status_code == 404:
                    return None
                raise
            # Airflow 3.2 waits by a trigger; later ones are deferred while they withdraw an earlier question.
            state = "awaiting_input" if hasattr(exceptions, "TaskAwaitingInput") else "deferred"
            is_waiting = self.get(task)["state"] == state
            return asked if is_waiting and not asked["response_received"] else None

        return wait_for(look, LIMIT, f"{task} to ask", lambda: self.log(task)[-3000:])

    def answer(self, task: Task, option: str, **form: str) -> None:
        """As the page of required actions does."""
        said = {"chosen_options": [option], "params_input": form}
        self.call("PATCH", f"{task.path}/{task.map_index}/hitlDetails", json=said)

    def log(self, task: Task) -> str:
        """All that its tries logged, on workers and triggerers."""
        lines = []
        for attempt in self.tries(task) if self._maybe(task) else ():
            if not attempt["try_number"]:
                continue
            lines.append(f"--- try {attempt['try_number']} ---")
            where = f"{task.path}/logs/{attempt['try_number']}"
            given = {"full_content": True, "map_index": task.map_index}
            for entry in self.call("GET", where, params=given)["content"]:
                lines.append(entry if isinstance(entry, str) else _line(entry))
        return "\n".join(lines)

    def wait_logged(self, task: Task, text: str) -> None:
        """Wait for a text in the task's log: its last lines may come after its state."""
        what = f"the log to say {text!r}"
        wait_for(lambda: text in self.log(task) or None, LIMIT, what, lambda: self.log(task)[-3000:])

    def xcom(self, task: Task, key: str = "return_value") -> Any:
        """None when there is none."""
        try:
            given = {"map_index": task.map_index}
            found = self.call("GET", f"{task.path}/xcomEntries/{quote(key, safe='')}", params=given)
        except httpx.HTTPStatusError as e:
            if e.response.status_code == 404:
                return None
            raise
        return found["value"]

    def state_store(self, task: Task) -> dict[str, Any]:
        """What the task keeps across its tries."""
        given = {"map_index": task.map_index}
        found = self.call("GET", f"{task.path}/state-store", params=given)
        return {entry["key"]: entry["value"] for entry in found["task_state_store"]}

    # --- Components ---

    def alive(self, job_type: str) -> list[dict[str, Any]]:
        """`SchedulerJob`, `TriggererJob` or `DagProcessorJob`s that beat lately."""
        return list(self.call("GET", "/jobs", params={"job_type": job_type, "is_alive": True})["jobs"])


def wait_for(
    look: Callable[[], T | None], timeout: float, what: str, seen: Callable[[], object] = lambda: ""
) -> T:
    """Look until there is something, which is returned.

    :raises TimeoutError: after `timeout` seconds; `seen` says what was there instead.
    """
    deadline = time.monotonic() + timeout
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}. {seen()}")
        time.sleep(_INTERVAL)
    return found


def _line(entry: dict[str, Any]) -> str:
    text = f"{entry.get('timestamp', '')} {entry.get('level', '')} {entry.get('event', '')}".strip()
    return "\n".join([text, *(f"{e['exc_type']}: {e['exc_value']}" for e in entry.get("error_detail") or ())])
