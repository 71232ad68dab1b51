"""What the processes of a trial do: make the input, answer and publish the slice, look at it, audit it.

Each function runs in a process of its own. `Place` says where.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import slice_run
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people
from airflow_provider_raydatallm.processor.metrics import progress
from airflow_provider_raydatallm.processor.publish import garbage, reconcile, staged_commands
from airflow_provider_raydatallm.processor.sinks import folder
from airflow_provider_raydatallm.processor.sinks.reading import kept_versions
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import lease, versions
from airflow_provider_raydatallm.processor.store.slice_folders import SliceFolders
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion
from tests.chaos import audit, failpoints, storage
from tests.chaos.failpoints import FailPoint
from tests.chaos.slices import NUMBERS, QUESTIONS, Slice
from tests.support import stub_engine
from tests.support.in_process import InProcess, answer_numbers

#: Of a stub's answers: input and output.
TOKENS = (7, 3)
BATCH = 6
#: The rows that are asked again.
AGAIN = "id % 3 = 0"


@dataclass(frozen=True)
class Place:
    """A slice, the S3 port that leads to it (None: a disk), and where answered rows are noted.
    `copy_timeout`: for how long the store may carry out a copy whose sender is gone."""

    slice: Slice
    port: int | None
    answered: str
    copy_timeout: float = 0.1


@dataclass(frozen=True)
class How:
    """How one process answers: where it is struck, how long each batch takes, when it begins (epoch
    seconds), after how many seconds its holder is taken for dead; and a file that it makes when it waits for
    another run, and that it waits for before it answers. `act`: whether it runs the slice, stages it only, or
    commits or discards the version that is `staged`, or has rows of it asked again (`AGAIN`)."""

    points: tuple[FailPoint, ...] = ()
    batch_seconds: float = 0.0
    flush_every: int = 1
    begin: float = 0.0
    stale: float = 0.3
    meet: str = ""
    sabotage: str = ""
    act: Literal["run", "stage", "commit", "discard", "ask again"] = "run"
    staged: str | None = None


def use(place: Place) -> None:
    """Have this process at that place."""
    storage.use(place.port)
    folder.COPY_TIMEOUT_SECONDS = place.copy_timeout


def prepare(place: Place) -> int:
    """Make the input, and publish the version that is there already, if there is one. Rows to answer."""
    use(place)
    fs, path = open_fs(place.slice.root)
    place.slice.write_input(fs, path, new=False)
    if place.slice.scenario.before is not None:
        job = place.slice.job(before=True)
        slice_run.run_slice(job, lambda progress: None, InProcess(batch=BATCH, answer=_answer_of(job)))
    place.slice.write_input(fs, path, new=True)
    return place.slice.to_answer


def _answer_of(job: SliceJob) -> Callable[[pa.Table], pa.Table]:
    if job.task.kind == "generate":
        return stub_engine.answer
    return partial(answer_numbers, size=NUMBERS[job.task.kind])


def answer(place: Place, how: How, change: dict[str, Any]) -> dict[str, Any]:
    """Run the slice; the outcome and the rows that were asked for.

    :param change: what the job differs in.
    """
    use(place)
    lease.STALE_SECONDS, lease.BEAT_SECONDS = how.stale, how.stale / 4
    note = os.open(place.answered, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def before_batch(batch: pa.Table) -> None:
        os.write(note, b"".join(b"%d %d\n" % row for row in zip(*_ids(batch), strict=True)))
        while how.meet and not os.path.exists(how.meet):
            time.sleep(0.01)
        if how.batch_seconds:
            time.sleep(how.batch_seconds)

    def told(news: dict[str, Any]) -> None:
        if how.meet and news["step"] == "attach":
            Path(how.meet).touch()

    answer = _healed if place.slice.scenario.healed else _answer_of(place.slice.job())
    cluster = InProcess(batch=BATCH, flush_every=how.flush_every, before_batch=before_batch, answer=answer)
    if how.sabotage:
        sabotage(how.sabotage)
    if any(p.step == "progress" for p in how.points):
        progress._EXPORT_SECONDS = 0.01
    failpoints.install(*how.points)
    time.sleep(max(0.0, how.begin - time.time()))
    job = place.slice.job(**change)
    if how.act == "commit":
        version = staged_commands.commit_for_people(job.address, how.staged)
        return {"outcome": "published", "answered": 0, "version": version.number}
    if how.act == "discard":
        return {
            "outcome": "discarded",
            "answered": 0,
            "name": staged_commands.discard_for_people(job.address, how.staged),
        }
    if how.act == "ask again":
        name, rows = ask_again_for_people(job.address, how.staged, AGAIN)
        return {"outcome": "discarded", "answered": 0, "name": name, "rows": rows}
    if how.act == "stage":
        staged = slice_run.stage_slice(job, told, cluster)
        if isinstance(staged, StagedVersion):
            return {"outcome": "staged", "answered": cluster.answered, "name": staged.name}
        return {"outcome": staged.outcome, "answered": cluster.answered}
    report = slice_run.run_slice(job, told, cluster)
    return {
        "outcome": report.outcome, "answered": cluster.answered, "version": report.published_version,
    }  # fmt: skip


def collect(place: Place, days: float, stale: float) -> int:
    """Remove what runs left, as `gc` does; the slices from which it removed something."""
    use(place)
    leftovers = garbage.find_leftovers(place.slice.job().address, days, stale)
    return sum(garbage.remove_leftovers(found, days) for found in leftovers)


def look(place: Place, questions: Sequence[int] = ()) -> list[str]:
    """Faults in what readers see of a slice that a killed process left.

    :param questions: whose answers there may be; by default that of the slice and of the one before.
    """
    use(place)
    s = place.slice
    allowed = [s.expected(question=q)[0] for q in questions or (s.scenario.question,)]
    if s.scenario.before is not None:
        allowed.append(s.expected(before=True)[0])
    return audit.glance(s.slice_path, allowed, published=s.scenario.before is not None)


def published_question(place: Place) -> int | None:
    """Whose answers are published, by the newest commit."""
    use(place)
    version = versions.newest_version(Store(place.slice.job().paths.metadata))
    if version is None:
        return None
    of = {fingerprint(place.slice.job(question=q)): q for q in range(len(QUESTIONS))}
    return of[version.fingerprint]


def newest_number(place: Place) -> int:
    """The number of the newest version; 0 for none."""
    use(place)
    version = versions.newest_version(Store(place.slice.job().paths.metadata))
    return version.number if version is not None else 0


def inspect(place: Place, question: int | None = None, keep_at: str = "") -> dict[str, Any]:
    """Audit the finished slice.

    :param keep_at: where to copy it to when it is not clean.
    """
    use(place)
    rows, aside = place.slice.expected(question=question)
    promise = audit.Promise(rows, aside, keep=place.slice.job().publish.keep_versions, tokens=TOKENS)
    found = audit.audit(place.slice.slice_path, promise)
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
    if (run_again["outcome"], run_again["answered"]) != ("unchanged", 0):
        found["faults"].append(f"one more run is no no-op: {run_again}")
    found["faults"] += changed(found["contents"], then["contents"], "one more run")
    return found


def changed(then: dict[str, str], now: dict[str, str], who: str) -> list[str]:
    """Faults for files that are not what they were."""
    names = sorted(n for n in then.keys() | now.keys() if then.get(n) != now.get(n))
    return [f"{who} changed {', '.join(names)}"] if names else []


def _audit_kept(s: Slice) -> list[str]:
    """The version that was there first, where it is kept."""
    kept = kept_versions(SliceFolders.open(s.job().paths))
    if s.scenario.before is None or 1 not in [v.number for v in kept[1 : 1 + kept[0].keep]]:
        return []
    try:
        rows = audit.published_dataset(s.slice_path, version=1).to_table().to_pylist()
    except Exception as e:
        return [f"the version before cannot be read: {type(e).__name__}: {e}"]
    return [] if rows == s.expected(before=True)[0] else ["the version that is kept is not what it was"]


def sabotage(what: str) -> None:
    """Break the product in this process, to see that the audit notices."""
    from airflow_provider_raydatallm.processor.store import checkpoint, fragment_reader

    if what == "nothing is fenced":
        folder.FolderSink.fence = lambda sink, version: {
            f"staged/{name}" for name in sink.folders.staging.tree("staged")
        }
        folder.remove_files = lambda store, names: None
        reconcile._is_newest = lambda folders, version: True
        folder.Shown.is_right = property(lambda self: self.has_success and not self.missing)
    elif what == "answers of the wrong place":
        between = fragment_reader.FragmentReader.between

        def shifted(self: Any, first: int, end: int, *, every: bool = False) -> Any:
            positions, table = between(self, first, end, every=every)
            return positions, table.take(pa.array(list(reversed(range(table.num_rows)))))

        fragment_reader.FragmentReader.between = shifted
    elif what == "short is good enough":
        checkpoint.CheckpointState.is_finished = property(lambda self: True)
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
    import duckdb  # noqa: F401
    import polars  # noqa: F401
    import s3fs  # noqa: F401
