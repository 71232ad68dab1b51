"""`make demo`: one day's customers, from an Airflow DAG to published Parquet, on this machine.

Uses real Airflow (SQLite), an embedded Ray head, vLLM on CPU and a tiny model that it trains once: no GPU,
account or download. All files are in `.demo/`. Ray keeps running for the next date (`airflow-ray-llm local
stop` ends it).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_raydatallm.clusters.embedded.head import LocalHeadError, check_head
from airflow_provider_raydatallm.contract.log.progress_text import rate_text
from demo.customers import industry_of, write_customers
from demo.environment import HOME, ROOT, airflow_environment, program
from demo.spec import write_specs

DATES = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = 12_000

#: What the operator logs, but for the marks between which Airflow folds lines, and warnings: of its run of
#: `dags test`, the demo knows.
_TASK_MESSAGE = re.compile(r"\[(?:info|error) +\] (?!::)(.*?) +\[airflow\.task\.operators")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--date", default=DATES[0], help=f"the day to answer: {', '.join(DATES)}")
    date = parser.parse_args().date
    if date not in DATES:
        parser.error(f"there are no customers of {date!r}; choose DATE={' or DATE='.join(DATES)}")

    try:
        check_head()  # all clones share it: that it cannot be joined is known before a minute of training
    except LocalHeadError as e:
        print(f"The demo cannot start: {e.failure.text}", file=sys.stderr)
        return 1
    began = time.monotonic()
    HOME.mkdir(exist_ok=True)
    environment = airflow_environment()
    line = ProgressLine()
    line.show("writing 12,000 customers of 3 days")
    write_customers(HOME / "customers", DATES, ROWS)
    write_specs(DATES, HOME)
    with open(HOME / "log.txt", "w") as log:
        line.show("training the tiny model (once, about a minute)")
        # In its own process, so that this one never loads torch.
        if _run(["python", "-m", "demo.tiny_model", str(HOME / "model")], environment, log):
            return _failed(line)
        line.show("preparing Airflow and the embedded Ray")
        start_head = (
            "from airflow_provider_raydatallm.clusters.embedded.head import ensure_head; ensure_head()"
        )
        head = subprocess.Popen([sys.executable, "-c", start_head], env=environment, stdout=log, stderr=log)
        if _run(["airflow", "db", "migrate"], environment, log) or head.wait():
            return _failed(line)
        # The run of the daily DAG at the end of a day answers that day.
        end_of_day = dt.date.fromisoformat(date) + dt.timedelta(days=1)
        command = ["airflow", "dags", "test", "customers_daily", end_of_day.isoformat()]
        if _run(command, environment, log, line.show_task_log):
            return _failed(line)
    line.done()
    return _show(date, time.monotonic() - began, already_done="unchanged" in line.last)


def _run(
    command: list[str], environment: dict[str, str], log: Any, each_line: Callable[[str], None] | None = None
) -> int:
    process = subprocess.Popen(
        [program(command[0]), *command[1:]],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for text in process.stdout:
        log.write(text)
        log.flush()
        if each_line is not None:
            each_line(text)
    return process.wait()


class ProgressLine:
    """On a terminal one line with running seconds, elsewhere a line for each step."""

    def __init__(self) -> None:
        self.last = ""
        self._began = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._end = threading.Event()
        if self._terminal:
            threading.Thread(target=self._tick, daemon=True).start()

    def show(self, text: str) -> None:
        if text != self.last:
            self.last = text
            if not self._terminal:
                print(f"[{time.monotonic() - self._began:4.0f} s] {text}", flush=True)

    def show_task_log(self, text: str) -> None:
        """Shows what the operator logs; ignores other lines."""
        if message := _TASK_MESSAGE.search(text):
            self.show(message.group(1))

    def done(self) -> None:
        self._end.set()
        if self._terminal:
            print("\r\033[K", end="", flush=True)

    def _tick(self) -> None:
        while not self._end.wait(0.5):
            print(f"\r\033[K[{time.monotonic() - self._began:4.0f} s] {self.last}"[:118], end="", flush=True)


def _failed(line: ProgressLine) -> int:
    line.done()
    tail = (HOME / "log.txt").read_text(errors="replace").splitlines()[-30:]
    print(
        f"The demo failed while: {line.last}\n",
        *tail,
        f"\nThe whole log: {HOME / 'log.txt'}",
        sep="\n",
        file=sys.stderr,
    )
    return 1


def _show(date: str, seconds: float, *, already_done: bool) -> int:
    import pyarrow.parquet as pq

    folder = HOME / "customers_enriched" / f"ds={date}"
    columns = ["Index", "Company", "Country", "industry"]
    rows = pq.read_table(folder, columns=columns, partitioning=None).to_pylist()
    reports = HOME / "customers_enriched.ray_llm" / f"ds={date}" / "reports"
    report = json.loads(max(reports.iterdir()).read_text())
    right = sum(industry_of(r["Company"]) == r["industry"] for r in rows)
    if already_done:
        print(f"{date} is already done: nothing was inferred again.")
    print(f"Published: {folder.relative_to(ROOT)}/ ({len(rows):,} rows)\n")
    for row in rows[:5]:
        print(f"  {row['Index']:>6}  {row['Company'][:44]:<44}  {row['Country'][:20]:<20}  {row['industry']}")
    rates, counts = report["throughput"], report["counts"]
    print(f"\naccuracy {right / len(rows):.3f}", end="")
    if rates["rows_per_s"]:  # else an earlier run answered all rows
        tokens_per_s = rates["input_tokens_per_s"] + rates["output_tokens_per_s"]
        print(
            f"   {rate_text(rates['rows_per_s'], 'rows/s')}   {rate_text(tokens_per_s, 'tokens/s')}", end=""
        )
    print(f"\n{counts['quarantined']} row(s) in quarantine" if counts["quarantined"] else "")
    if not already_done and report["seconds"]["engine_start"]:
        print(
            f"{seconds:.0f} s in all, {report['seconds']['engine_start']:.0f} s of them to start the engine"
        )
    others = [d for d in DATES if not (HOME / "customers_enriched" / f"ds={d}").exists()]
    print("Next: make page shows it in Airflow's UI" + (f"; make demo DATE={others[0]}" if others else ""))
    print("Ray keeps running; end it with .venv/bin/airflow-ray-llm local stop")
    return 0 if len(rows) == counts["succeeded"] else 1


if __name__ == "__main__":
    sys.exit(main())
