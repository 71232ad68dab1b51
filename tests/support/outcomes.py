"""What became of a slice after an event: a line of the table that a session of durable tests ends with."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY
from tests.support.airflow_processes import Airflow
from tests.support.airflow_rest import LIMIT, RestApi, Task, wait_for
from tests.support.ray_door import Cluster
from tests.support.tables import Table

#: Seconds that a job whose report is out may take to end.
_ENDING = 120.0
#: What Airflow logs of a try that raised.
_RAISED = "Task failed with exception"
#: And of a process whose task somebody marked meanwhile.
_ENDED = "Server indicated the task shouldn't be running anymore"


@dataclass(frozen=True)
class Line:
    event: str
    mode: str
    outcome: str
    """What the tasks pushed to XCom, such as `published`, or `published x3, unchanged`; `-`: nothing."""
    jobs: int
    """Ray jobs that did work: whose engine answered rows, since the table's last line."""
    left: int
    """Ray jobs of these slices that still run."""
    rows: str
    """`right`: every slice is published, each row once, in order, with its own answer; `none`: nothing is
    published; else `wrong`, or `some` when slices differ."""
    state: str
    """Of the tasks, as Airflow shows it."""


class Outcomes:
    """Looks at what became of slices, and keeps the lines."""

    def __init__(self, airflow: Airflow, cluster: Cluster) -> None:
        self._airflow, self._cluster = airflow, cluster
        self._counted: set[str] = set()
        self.lines: list[Line] = []
        #: Failures that reached Airflow, each with its record.
        self.recorded = 0

    def see(
        self, event: str, mode: str, tasks: Task | Iterable[Task], table: Table, *slices: str,
        timeout: float = LIMIT,
    ) -> Line:  # fmt: skip
        """Wait until the tasks are over, and say what became of them and their slices.

        :param tasks: none of a run that was deleted
        """
        tasks = [tasks] if isinstance(tasks, Task) else list(tasks)
        states = [self._airflow.api.finish(task, timeout) for task in tasks]
        for task, state in zip(tasks, states, strict=True):
            if state == "failed":
                self.recorded += assert_recorded(self._airflow.api, task)
        pushed = [(self._airflow.api.xcom(task) or {}).get("outcome", "-") for task in tasks]
        working = set(table.working_jobs(*slices)) - self._counted
        self._counted |= working
        rows = {_rows(table, key) for key in slices}
        line = Line(
            event, mode, _counts(pushed), len(working), self._left({task.run_id for task in tasks}),
            rows.pop() if len(rows) == 1 else "wrong" if "wrong" in rows else "some", _counts(states),
        )  # fmt: skip
        self.lines.append(line)
        return line

    def _left(self, runs: Iterable[str]) -> int:
        deadline = time.monotonic() + _ENDING
        while left := sum(len(self._cluster.running(run_id=run)) for run in runs):
            if time.monotonic() > deadline:
                break
            time.sleep(0.3)
        return left


def assert_recorded(api: RestApi, task: Task) -> bool:
    """Asserts that an exception of the last try left its record, and that its sentence and its advice end the
    log, a line each.

    Returns False for a task that was killed, or marked by a person.
    """
    recorded = api.xcom(task, FAILURE_KEY)
    log = api.log(task).rpartition("--- try ")[2]
    if _RAISED not in log:
        return False
    assert recorded is not None, log
    failure = Failure.parse(recorded)
    last = [failure.headline, *failure.advice]

    def ends_log() -> bool | None:
        depth, left = 0, list(last)
        # Of a task that Airflow itself ended, lines of its own follow.
        for line in api.log(task).rpartition(_RAISED)[2].splitlines():
            depth = max(depth + line.count("::group::") - line.count("::endgroup::"), 0)
            if left and f" error {left[0]}" in line and depth == 0:
                left.pop(0)
            if not left:
                return True
            # Callbacks, which show it last, do not run in a process that the server ends.
            if depth == 0 and line.endswith(f"Error: {failure.sentence}") and _ENDED in api.log(task):
                return True
        return None

    wait_for(ends_log, LIMIT, f"the log to end with {last!r}", lambda: api.log(task)[-3000:])
    return True


def _rows(table: Table, key: str) -> str:
    if table.rows_right(key):
        return "right"
    return "wrong" if table.has_output(key) else "none"


def _counts(values: Iterable[str]) -> str:
    counts = Counter(values)
    return ", ".join(v if n == 1 else f"{v} x{n}" for v, n in sorted(counts.items())) or "-"


def table_of(lines: Iterable[Line]) -> str:
    head = ("event", "mode", "outcome", "jobs", "left", "rows", "state")
    assert len(head) == len(fields(Line))
    cells = [head, *(tuple(map(str, astuple(line))) for line in lines)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    texts = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([texts[0], "-" * max(map(len, texts)), *texts[1:]])
