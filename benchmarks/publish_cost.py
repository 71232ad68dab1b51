"""What publishing costs: seconds from the commit until readers see the version, and requests to the store.

A slice of one small file, on the local disk and on an S3 API (moto behind a proxy that adds 50 ms to each
request). A version that replaces another one on an object store waits until no older copy can still arrive;
that wait is shown apart.

And what it costs to commit a staged version of a million rows on a disk, in a process that imports neither
Arrow nor Ray, as the Airflow side does.

Goals: a first version is in sight 0.3 s after its commit on a disk, 2 s on S3; a finished slice is found
finished in 3 s; a staged version of a million rows is committed in 2 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.table import Figure, say, show

LATENCY_SECONDS = 0.05
ROWS = 1_000
GOAL_SECONDS = {"on disk": 0.3, "on S3": 2.0}
NO_OP_GOAL_SECONDS = 3.0
STAGED_ROWS = 1_000_000
COMMIT_GOAL_SECONDS = 2.0
#: Commits the only staged version of a spec; prints the seconds of the process and what it imported.
_COMMIT = """
import time
began = time.monotonic()
import sys
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish.staged_commands import commit_for_people
commit_for_people(SliceJob.model_validate_json(open(sys.argv[1]).read()).address, None)
heavy = [name for name in ("pyarrow", "ray", "pandas") if name in sys.modules]
print(time.monotonic() - began, ",".join(heavy) or "none of them")
"""


def run() -> bool:
    from tests.support.s3 import moto_server
    from tests.support.s3_dialect import s3_dialect

    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder,
        moto_server() as address,
        s3_dialect(int(address.rpartition(":")[2])) as dialect,
    ):
        urlopen(Request(f"{address}/lake", method="PUT")).close()
        os.environ |= {
            "AWS_ENDPOINT_URL": dialect.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        dialect.latency_s = LATENCY_SECONDS
        for where, output in (("on disk", f"{folder}/out"), ("on S3", "s3://lake/out")):
            figures += _measure(where, folder, output, dialect)
        figures += _commit_staged(Path(folder, "staged"))
    return show(figures)


def _measure(where: str, folder: str, output: str, dialect: Any) -> list[Figure]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.processor.sinks import folder as folder_sink
    from airflow_provider_raydatallm.processor.store import versions
    from tests.support.in_process import InProcess, changed, job_of, run_in_process

    Path(folder, "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"name": [f"row {i}" for i in range(ROWS)]}), f"{folder}/in/a.parquet")
    first = job_of(input_path=f"{folder}/in/", output_path=output, rerun__on_config_change="recompute")
    other = changed(first, prompt="other {name}")
    times: dict[str, float] = {}
    create_commit, show_version = versions.create_commit, folder_sink.FolderSink._replace

    def committed(*args: Any) -> bool:
        result = create_commit(*args)
        times["committed"] = time.monotonic()
        return result

    def shown(*args: Any) -> None:
        show_version(*args)
        times["shown"] = time.monotonic()

    def measured(job: Any) -> tuple[float, float, Counter[str]]:
        dialect.requests.clear()
        began = time.monotonic()
        run_in_process(job, InProcess(batch=ROWS))
        seconds = time.monotonic() - began
        return seconds, times["shown"] - times["committed"], Counter(m for m, _ in dialect.requests)

    versions.create_commit, folder_sink.FolderSink._replace = committed, shown  # type: ignore[assignment]
    try:
        say(f"publishing {where}")
        measured(changed(first, slice_key="2026-01-01"))  # tries the store, once for a table
        _, visible, requests = measured(first)
        again, _, again_requests = measured(first)
        _, replaced, replacing = measured(other)
    finally:
        versions.create_commit, folder_sink.FolderSink._replace = create_commit, show_version
    wait = folder_sink.COPY_TIMEOUT_SECONDS if where == "on S3" else 0.0
    goal = GOAL_SECONDS[where]
    return [
        Figure(
            f"{where}: commit to visible, first version", f"{visible:.2f} s", f"< {goal} s", visible < goal
        ),
        Figure("... a version that replaces another", f"{replaced - wait:.2f} s + {wait:g} s of waiting"),
        Figure(
            "... a finished slice",
            f"{again:.2f} s",
            f"< {NO_OP_GOAL_SECONDS:g} s",
            again < NO_OP_GOAL_SECONDS,
        ),
        *(
            Figure(f"... requests: {what}", f"{counts.total()} ({_list(counts)})")
            for what, counts in (("first", requests), ("replacing", replacing), ("finished", again_requests))
            if counts
        ),
    ]


def _commit_staged(folder: Path) -> list[Figure]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.processor.slice_run import stage_slice
    from tests.support.in_process import InProcess, job_of

    say(f"staging {STAGED_ROWS:,} rows")
    folder.mkdir()
    pq.write_table(pa.table({"name": [f"row {i}" for i in range(STAGED_ROWS)]}), folder / "in.parquet")
    job = job_of(input_path=f"{folder}/in.parquet", output_path=f"{folder}/out")
    stage_slice(job, lambda progress: None, InProcess(batch=10_000, flush_every=10))
    (folder / "spec.json").write_text(job.model_dump_json())
    command = [sys.executable, "-c", _COMMIT, str(folder / "spec.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.split(maxsplit=1)
    is_met = float(seconds) < COMMIT_GOAL_SECONDS and heavy.strip() == "none of them"
    return [
        Figure(
            f"on disk: commit of a staged version of {STAGED_ROWS:,} rows",
            f"{float(seconds):.2f} s, importing pyarrow, ray, pandas: {heavy.strip()}",
            f"< {COMMIT_GOAL_SECONDS:g} s, none",
            is_met,
        )
    ]


def _list(requests: Counter[str]) -> str:
    return ", ".join(f"{count} {method}" for method, count in sorted(requests.items()))
