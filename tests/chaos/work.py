"""What the processes of a trial do: make the input, answer and publish the slice, look at it, audit it.

Each function runs in a process of its own. `Place` says where.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_raydatallm.processor import slice_run
from airflow_provider_raydatallm.processor import storage as store_files
from airflow_provider_raydatallm.processor.storage import open_fs
from airflow_provider_raydatallm.processor.store import lease
from tests.chaos import audit, failpoints, storage
from tests.chaos.failpoints import FailPoint
from tests.chaos.slices import Slice
from tests.support import stub_engine
from tests.support.in_process import InProcess

#: Of a stub's answers: input and output.
TOKENS = (7, 3)
BATCH = 6


@dataclass(frozen=True)
class Place:
    """A slice, the S3 port that leads to it (None: a disk), and where answered rows are noted."""

    slice: Slice
    port: int | None
    answered: str


@dataclass(frozen=True)
class How:
    """How one process answers: where it is struck, how long each batch takes, when it begins (epoch
    seconds), after how many seconds its holder is taken for dead; and a file that it makes when it waits for
    another run, and that it waits for before it answers."""

    point: FailPoint | None = None
    batch_seconds: float = 0.0
    flush_every: int = 1
    begin: float = 0.0
    stale: float = 0.3
    meet: str = ""
    sabotage: str = ""


def prepare(place: Place) -> int:
    """Make the input, and publish the version that is there already, if there is one. Rows to answer."""
    storage.use(place.port)
    fs, path = open_fs(place.slice.root)
    place.slice.write_input(fs, path, new=False)
    if place.slice.scenario.before is not None:
        slice_run.run_slice(place.slice.job(before=True), lambda progress: None, InProcess(batch=BATCH))
    place.slice.write_input(fs, path, new=True)
    return place.slice.to_answer


def answer(place: Place, how: How, change: dict[str, Any]) -> dict[str, Any]:
    """Run the slice; the outcome and the rows that were asked for.

    :param change: what the job differs in.
    """
    storage.use(place.port)
    lease.STALE_SECONDS, lease.BEAT_SECONDS = how.stale, how.stale / 4
    note = os.open(place.answered, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def before_batch(batch: pa.Table) -> None:
        os.write(note, b"".join(b"%d %d\n" % row for row in zip(*_ids(batch), strict=True)))
        while how.meet and not os.path.exists(how.meet):
            time.sleep(0.01)
        if how.batch_seconds:
            time.sleep(how.batch_seconds)

    def told(progress: dict[str, Any]) -> None:
        if how.meet and progress["step"] == "attach":
            Path(how.meet).touch()

    answer = _healed if place.slice.scenario.healed else stub_engine.answer
    cluster = InProcess(batch=BATCH, flush_every=how.flush_every, before_batch=before_batch, answer=answer)
    if how.sabotage:
        sabotage(how.sabotage)
    if how.point is not None:
        failpoints.install(how.point)
    time.sleep(max(0.0, how.begin - time.time()))
    report = slice_run.run_slice(place.slice.job(**change), told, cluster)
    return {"outcome": report.outcome, "answered": cluster.answered}


def look(place: Place, question: int | None = None) -> list[str]:
    """Faults in what readers see of a slice that a killed process left."""
    storage.use(place.port)
    s = place.slice
    allowed = [s.expected(question=question)[0]]
    if s.scenario.before is not None:
        allowed.append(s.expected(before=True)[0])
    files = [bool(s.scenario.given.get(k)) for k in ("file_per_input", "max_file_bytes")]
    before = s.scenario.before or {}
    one_file = not any(files) and not before.get("file_per_input")
    return audit.glance(s.slice_path, allowed, published=s.scenario.before is not None, one_file=one_file)


def inspect(place: Place, question: int | None = None, keep_at: str = "") -> dict[str, Any]:
    """Audit the finished slice.

    :param keep_at: where to copy it to when it is not clean.
    """
    storage.use(place.port)
    rows, aside = place.slice.expected(question=question)
    promise = audit.Promise(rows, aside, keep=place.slice.job().keep_versions, tokens=TOKENS)
    found = audit.audit(place.slice.slice_path, promise)
    if place.slice.job().keep_versions and question is None:
        found.faults += _audit_kept(place.slice)
    if keep_at and not (found.clean and not found.litter):
        storage.copy_to_disk(place.slice.root, Path(keep_at))
    return {**found.to_json(), "contents": audit.contents(place.slice.slice_path)}


def conclude(place: Place, change: dict[str, Any], question: int | None, keep_at: str) -> dict[str, Any]:
    """Audit the finished slice, run it once more, which must find nothing to do, and audit it again."""
    found = inspect(place, question, keep_at)
    run_again = answer(place, How(), change)
    then = inspect(place, question, keep_at)
    found["faults"] += [f"after one run more: {f}" for f in then["faults"] if f not in found["faults"]]
    if run_again != {"outcome": "unchanged", "answered": 0}:
        found["faults"].append(f"one more run is no no-op: {run_again}")
    found["faults"] += changed(found["contents"], then["contents"], "one more run")
    return found


def changed(then: dict[str, str], now: dict[str, str], who: str) -> list[str]:
    """Faults for files that are not what they were."""
    names = sorted(n for n in then.keys() | now.keys() if then.get(n) != now.get(n))
    names = [n for n in names if "_tmp-" not in n and n != "_lock"]
    return [f"{who} changed {', '.join(names)}"] if names else []


def _audit_kept(s: Slice) -> list[str]:
    try:
        kept = audit.published_dataset(s.slice_path, version=1).to_table().to_pylist()
    except Exception as e:
        return [f"the version before cannot be read: {type(e).__name__}: {e}"]
    return [] if kept == s.expected(before=True)[0] else ["the version that is kept is not what it was"]


def sabotage(what: str) -> None:
    """Break the product in this process, to see that the audit notices."""
    from airflow_provider_raydatallm.processor.publish import parts
    from airflow_provider_raydatallm.processor.store import fragments, ledger

    if what == "nothing is fenced":
        create = store_files.Store.create
        lease.Lease.check = lambda self: None
        lease.Lease.lost = False
        store_files.Store.replace = lambda self, name, source, check, **k: self.put(name, source.read_bytes())
        store_files.Store.create = lambda self, name, data: create(self, name, data) or "commit-" in name
    elif what == "answers of the wrong place":
        window = fragments.FragmentReader.window

        def shifted(self: Any, index: int, start: int, stop: int) -> Any:
            offsets, table = window(self, index, start, stop)
            return offsets, table.take(pa.array(list(reversed(range(table.num_rows)))))

        fragments.FragmentReader.window = parts.FragmentReader.window = shifted
    elif what == "short is good enough":
        ledger.missing_rows = lambda units, done: []
    else:
        raise ValueError(what)


def _ids(batch: pa.Table) -> tuple[list[int], list[int]]:
    return batch.column("__unit").to_pylist(), batch.column("__offset").to_pylist()


def _healed(batch: pa.Table) -> pa.Table:
    """Of the stub: nothing fails any more."""
    kept = batch.column("__request")
    # A message that begins with "fail" fails in the stub, so it gets another one and the answer is put right.
    hidden = pa.array([t.replace('"content": "fail', '"content": "~fail') for t in kept.to_pylist()])
    index = batch.schema.get_field_index("__request")
    answers = stub_engine.answer(batch.set_column(index, "__request", hidden))
    at = answers.schema.get_field_index("text")
    texts = [t.removeprefix("~") for t in answers.column("text").to_pylist()]
    return answers.set_column(at, "text", pa.array(texts, pa.string()))


with contextlib.suppress(ImportError):
    import s3fs  # noqa: F401
