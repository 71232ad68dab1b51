"""Rows that are inferred again after the driver is killed (SIGKILL), at 25, 50 and 90% of 20,000 rows.

Real vLLM on CPUs with the demo's tiny model, through Ray Data LLM, on an embedded Ray head that outlives its
jobs. One slice is run until it is killed, run again until it is killed again, and so on to the end. Goal: of
the rows that had left the engine at most those in flight plus those of the seconds until a flush are answered
again; rows in flight in the engine (batch size times batches at once) had not left it.

Beside it, plain Ray Data LLM with `write_parquet` and Ray Data's `CheckpointConfig`, the same engine and
sizes: of the rows that had left the engine, those that it had committed. A block is the grain of that:
`repartition(128)`, as the guides have it; `BENCH_RESUME_BLOCKS=0` leaves the blocks as they are read.
With vLLM a row counts as having left the engine when the step after it sees its batch, here and there; what
vLLM had finished of unfinished batches is among the rows in flight.
`BENCH_RESUME_ENGINE=stub` takes a stub of 1 ms a row instead of vLLM.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from airflow_provider_raydatallm.local_ray.head import ensure_head, stop_head
from airflow_provider_raydatallm.processor.storage import Store
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint
from airflow_provider_raydatallm.processor.store.fragments import FLUSH_SECONDS
from airflow_provider_raydatallm.processor.store.ledger import count_rows, finished_rows
from benchmarks.demo_work import write_customers_parquet
from benchmarks.fresh import ROOT
from benchmarks.paced import Departures
from benchmarks.table import print_rows, say
from tests.support.tiny_model import tiny_model

ROWS = int(os.environ.get("BENCH_RESUME_ROWS", 20_000))
STUB = os.environ.get("BENCH_RESUME_ENGINE") == "stub"
KILLS = (0.25, 0.5, 0.9)

_ENV = {"BENCH_RESUME_BLOCKS": os.environ.get("BENCH_RESUME_BLOCKS", "128")}
_BATCH, _BATCHES_AT_ONCE = 128, 4
#: Actors of a driver that died are ended by then, and what they still put is there.
_SETTLE_SECONDS = 10.0


class Killed(NamedTuple):
    """Rows at a kill. `left`: left the engine in the killed run; `kept`: of them, were there afterwards."""

    at: float
    left: int
    kept: int
    rows_per_s: float

    @property
    def again(self) -> int:
        return self.left - self.kept


def run() -> bool:
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        root = Path(folder)
        os.environ |= {
            "AIRFLOW_RAY_LLM_LOCAL_DIR": str(root / "ray"),
            "AIRFLOW_CONN_RAY_DEFAULT": "ray://local",
        }
        model = "stub/stub" if STUB else str(tiny_model())
        write_customers_parquet(root / "in", ROWS)
        ensure_head()
        try:
            ours, again = _kill_slice(_job(root, "ours", model))
            committed = _watch_plain(_job(root, "plain", model))
        finally:
            stop_head()
    met = []
    rows = []
    for kill, theirs in zip(ours, committed, strict=True):
        in_flight = min(_BATCH * _BATCHES_AT_ONCE, int(ROWS * (1 - kill.at)))
        unflushed = int(kill.rows_per_s * FLUSH_SECONDS)
        met.append(kill.again <= in_flight + unflushed)
        cells = (kill.left, kill.kept, kill.again, in_flight, unflushed)
        verdict = "met" if met[-1] else "NOT MET"
        rows.append(
            [f"{kill.at:.0%}", *(f"{n:,}" for n in cells), verdict, f"{theirs[0]:,} of {theirs[1]:,}"]
        )
    print_rows(
        ["killed at", "left the engine", "kept", "again", "goal: in flight", f"+ {FLUSH_SECONDS:g} s", "",
         "plain Ray Data LLM had committed"],
        rows,
    )  # fmt: skip
    print(f"{again:,} rows of {ROWS:,} left the engine more than once, over {len(KILLS)} kills\n")
    return all(met)


def _kill_slice(job: SliceJob) -> tuple[list[Killed], int]:
    command = ["airflow_provider_raydatallm.processor", "run"]
    kept, kills, left_in_all = 0, [], 0
    for at in (*KILLS, None):
        say(f"a run from {kept:,} rows on, {f'to be killed at {at:.0%}' if at else 'to the end'}")
        until = None if at is None else (lambda left, at=at, kept=kept: kept + left >= at * ROWS)
        departed = _run(job, command, until)
        left, rate = sum(n for _, n in departed), _rate(departed)
        left_in_all += left
        if at is None:
            break
        now = _finished(job)
        say(f"killed: {left:,} rows had left the engine at {rate:.0f} rows/s, {now - kept:,} are kept")
        kills.append(Killed(at, left, now - kept, rate))
        kept = now
    published = pq.read_table(f"{job.slice_path}/part-00000.parquet")
    assert published.num_rows == ROWS, published.num_rows
    return kills, left_in_all - ROWS


def _watch_plain(job: SliceJob) -> list[tuple[int, int]]:
    """(rows committed, rows that left the engine) at the same points."""
    found: list[tuple[int, int]] = []

    def until(left: int) -> bool:
        while len(found) < len(KILLS) and left >= KILLS[len(found)] * ROWS:
            found.append((_committed(Path(job.output_path)), left))
            say(f"plain Ray Data LLM: {found[-1][0]:,} of {left:,} rows committed")
        return len(found) == len(KILLS)

    say("plain Ray Data LLM, with CheckpointConfig")
    _run(job, ["benchmarks.plain_llm"], until)
    return found


def _run(job: SliceJob, module: list[str], until: Callable[[int], bool] | None) -> list[tuple[float, int]]:
    """A Ray job, killed when `until` says so of the rows that left its engine; what left it."""
    spec = Path(f"{job.output_path}.spec.json")
    spec.write_text(job.model_dump_json())
    departures, said = Departures(job.output_path), time.monotonic()
    before = len(departures.all())
    hook, id_ = RayHook(), f"bench-{uuid.uuid4().hex[:8]}"
    command = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join([sys.executable, '-m', *module, str(spec)])}"
    hook.call(
        jobs_api.submit(submission_id=id_, entrypoint=command, runtime_env={"env_vars": _ENV}, metadata={})
    )
    killed = False
    while (info := hook.call(jobs_api.get_status(id_))) is None or info.status not in jobs_api.TERMINAL:
        left = sum(n for _, n in departures.all()[before:])
        if until is not None and not killed and until(left):
            _kill(str(spec))
            killed = True
        if time.monotonic() - said > 20:
            said = time.monotonic()
            say(f"{left:,} rows left the engine in this run")
        time.sleep(0.1)
    if info.status != "SUCCEEDED" and not killed:
        raise SystemExit(info.message[-4000:])
    time.sleep(_SETTLE_SECONDS)
    return departures.all()[before:]


def _kill(spec: str) -> None:
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if spec in command and "python" in command[0]:
            process.kill()


def _rate(departed: list[tuple[float, int]]) -> float:
    times = [when for when, _ in departed]
    return sum(n for _, n in departed) / max(max(times) - min(times), 1.0)


def _finished(job: SliceJob) -> int:
    checkpoint = Checkpoint(Store(job.slice_path), 1, fingerprint(job), "new")
    return sum(count_rows(spans) for spans in finished_rows(checkpoint.fragments()).values())


def _committed(output: Path) -> int:
    """Rows whose ids are committed: those would not be inferred again."""
    files = [p for p in (output / "checkpoint").glob("*.parquet") if ".pending" not in p.name]
    return sum(pq.read_metadata(p).num_rows for p in files)


def _job(root: Path, name: str, model: str) -> SliceJob:
    from demo.customers import LABELS

    return SliceJob(
        slice_key="2026-01-31",
        input_path=str(root / "in"),
        output_path=str(root / name),
        model_source=model,
        system_prompt="You infer a company's industry.",
        prompt="What industry is this company in: {name}",
        choices=None if STUB else tuple(LABELS),
        sampling_params={"temperature": 0, "max_tokens": 16},
        engine="benchmarks.paced:Paced" if STUB else "benchmarks.paced:CountedLLM",
        engine_kwargs={"seconds_per_row": 0.001, "busy": False} if STUB else {"max_model_len": 256},
        batch_size=_BATCH,
        max_concurrent_batches=_BATCHES_AT_ONCE,
        max_quarantine_fraction=1,
    )
