"""Whoever can write files into a table's metadata can forge its versions, and nothing beyond it: no other
table's file is read, copied or removed, and what blocks the table is named."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import MARK
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.publish.published import published_report
from airflow_provider_raydatallm.processor.publish.restore import restore_version
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError
from airflow_provider_raydatallm.processor.store import lease, versions
from airflow_provider_raydatallm.processor.store.checkpoint import Checkpoint, load_plan
from airflow_provider_raydatallm.processor.store.file_names import LAST_NUMBER, PROGRESS
from airflow_provider_raydatallm.processor.store.run_record import read_progress
from airflow_provider_raydatallm.processor.tables.slice_state import read_state
from airflow_provider_raydatallm.reader import published_dataset, published_files
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.self_naming_rows import Killed, kill_after
from tests.support.slice_files import answers, folders_of, metadata, newest

#: Digits to Python, and to no name.
ZEROS = "\u0660" * 5


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("name\na\nb\nfail\n")
    return tmp_path / "lake"


def table(lake: Path, name: str, **given: Any) -> SliceJob:
    """Of three rows, one of which fails."""
    return job_of(
        input_path=f"{lake.parent}/in/", output_path=f"{lake}/{name}", quality__max_quarantine=1,
        rerun__on_config_change="recompute", **given,
    )  # fmt: skip


@pytest.fixture
def own(lake: Path) -> SliceJob:
    job = table(lake, "own")
    run_in_process(job)
    return job


@pytest.fixture
def other(lake: Path) -> SliceJob:
    """Another table."""
    job = table(lake, "other", prompt="{name} secret")
    run_in_process(job)
    return job


def asked_anew(job: SliceJob, text: str = "new") -> SliceJob:
    return changed(job, prompt=f"{{name}} {text}")


def forge(job: SliceJob, at: int = 1, **change: Any) -> None:
    """Writes a commit as others may, with a checksum that is right."""
    store = folders_of(job).metadata
    body = store.read_document(versions.commit_name(at)) or newest(job).body
    store.put_document(versions.commit_name(at), {**body, "number": at, **change})
    for complete in metadata(job).glob("commits/complete-*"):
        complete.unlink()


def content_of(job: SliceJob) -> dict[str, bytes]:
    """All that a table has but why a run failed."""
    root = Path(job.output_path)
    files = [p for folder in root.parent.glob(f"{root.name}*") for p in folder.rglob("*") if p.is_file()]
    return {str(p): p.read_bytes() for p in files if p.name != PROGRESS}


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(SliceError) as e:
        ask()
    assert e.value.kind == "input"
    return str(e.value)


# Quarantines


def test_older_commit_that_names_another_table_s_quarantine_copies_and_removes_nothing_there(
    own: SliceJob, other: SliceJob
) -> None:
    """Else the other's rows would be kept as an older version, and removed where they are."""
    run_in_process(asked_anew(own))
    before = content_of(other)
    forge(own, quarantine_folder=other.paths.quarantine, quarantine=newest(other).body["quarantine"])
    for text, outcome in (("new", "unchanged"), ("newer", "published")):
        assert run_in_process(asked_anew(own, text)).outcome == outcome
        assert content_of(other) == before
        [name] = [file["name"].removesuffix(".parquet") for file in newest(other).body["quarantine"]]
        assert not [path for path in content_of(own) if name in path]
    assert answers(own) == ["a newer", "b newer"]


@pytest.mark.parametrize("named", ["quarantine", "table"])
def test_newest_commit_that_names_another_table_s_folder_is_refused_and_nothing_changes(
    own: SliceJob, other: SliceJob, named: str
) -> None:
    folder = getattr(other.paths, named)
    forge(own, 2, staged="000002-0123abcd", files=[], quarantine=[], quarantine_folder=folder)
    before = content_of(own) | content_of(other)
    for ask in (
        lambda: run_in_process(own),
        lambda: run_in_process(changed(own, publish__quarantine_path=folder.rpartition("/")[0])),
        lambda: published_report(own.paths),
    ):
        assert folder in refused(ask)
    assert folder in str(read_state("2026-01-31", folders_of(own)).error)
    assert content_of(own) | content_of(other) == before
    assert run_in_process(changed(own, rerun__force=True)).published_version == 3
    assert content_of(other).items() <= before.items()


def test_table_whose_quarantine_its_owner_put_elsewhere_keeps_both(lake: Path, own: SliceJob) -> None:
    first = changed(own, publish__quarantine_path=f"{lake}/first")
    run_in_process(asked_anew(first, "one"))
    second = changed(first, publish__quarantine_path=f"{lake}/second")
    assert run_in_process(asked_anew(second, "one")).outcome == "unchanged"
    assert published_report(own.paths) != f"{own.slice_path} is not published"
    assert [p.parts[-3] for p in lake.rglob("quarantine-*.parquet")] == ["first"]
    run_in_process(asked_anew(second, "two"))
    assert [p.parts[-3] for p in lake.rglob("quarantine-*.parquet")] == ["second"]
    assert len(list(lake.glob("own.ray_llm/*/kept/000002/quarantine-*"))) == 1


def test_table_that_left_its_quarantine_is_told_so_before_anything_is_removed(lake: Path) -> None:
    job = table(lake, "own", publish__quarantine_path=f"{lake}/failed")
    run_in_process(job)
    for name in ("own", "own.ray_llm"):
        (lake / name).rename(lake / name.replace("own", "moved"))
    moved, mark = (
        table(lake, "moved", publish__quarantine_path=f"{lake}/failed"),
        lake / "failed.ray_llm" / MARK,
    )
    before = content_of(moved)
    assert str(mark) in refused(lambda: run_in_process(moved))
    assert content_of(moved) == before
    mark.unlink()
    assert run_in_process(moved).outcome == "unchanged"


def test_quarantine_of_an_older_provider_is_the_one_that_its_job_declares(lake: Path) -> None:
    job = table(lake, "own", publish__quarantine_path=f"{lake}/failed")
    run_in_process(job)
    (lake / "failed.ray_llm" / MARK).unlink()
    assert run_in_process(job).outcome == "unchanged"
    assert "nothing says whose" in refused(lambda: run_in_process(table(lake, "own")))
    assert len(published_files(job.slice_path)) == 1  # which needs no quarantine
    run_in_process(changed(job, slice_key="2026-02-01"))  # says whose it is
    assert run_in_process(table(lake, "own")).outcome == "unchanged"


# Fields


SHAPES: list[dict[str, Any]] = [
    {"number": 2}, {"number": "1"}, {"files": "x"}, {"files": [1]}, {"files": {}}, {"keep": -1},
    {"keep": 10**30}, {"keep": True}, {"epoch": 10**30}, {"epoch": -1}, {"epoch": "1"}, {"staged": "x"},
    {"staged": "000001-0123abcd/.."}, {"staged": f"{ZEROS}1-0123abcd"}, {"plan": "commits/x.json"},
    {"plan": "plans/../../x"}, {"report": []}, {"report": {"outcome": 1}}, {"input": None},
    {"fingerprint": ["a"]}, {"quarantine_folder": 5}, {"slice_instant": {}}, {"format": "3"},
]  # fmt: skip
FILES: list[dict[str, Any]] = [
    {"rows": -1}, {"bytes": -5}, {"rows": 10**30}, {"sha256": "x"}, {"name": "../x"}, {"input": 5},
    {"more": 1}, {"name": "quarantine-000001-00000-of-00001-0123abcd.parquet"},
    {"name": "part-000002-00000-of-00001-0123abcd.parquet"},
]  # fmt: skip


def test_commit_of_another_shape_is_damaged_and_nothing_changes(own: SliceJob) -> None:
    store, name = folders_of(own).metadata, versions.commit_name(1)
    body = store.read_document(name)
    [file] = body["files"]
    forged = [{**body, **change} for change in SHAPES]
    forged += [{**body, "files": [{**file, **change}]} for change in FILES]
    for one in (*forged, [], "x", 5, {}, {"format": None}):
        store.put_document(name, one)
        before = content_of(own)
        for ask in (lambda: run_in_process(own), lambda: published_report(own.paths)):
            assert f"{name} is damaged" in refused(ask)
        assert read_state("2026-01-31", folders_of(own)).error
        assert content_of(own) == before


def test_commit_of_an_older_format_is_refused_by_name(own: SliceJob) -> None:
    forge(own, format=versions.FORMAT - 1, provider_version="0.0.1")
    before = content_of(own)
    assert "version 0.0.1 of the provider, which is older" in refused(lambda: run_in_process(own))
    assert content_of(own) == before
    assert run_in_process(changed(own, rerun__force=True)).published_version == 2


def test_report_says_where_the_slice_is_and_not_where_its_commit_says(own: SliceJob) -> None:
    report = {**newest(own).body["report"], "output_path": "/elsewhere", "published_version": 7}
    forge(own, report=report)
    for told in (run_in_process(own), published_report(own.paths)):
        assert not isinstance(told, str)
        assert (told.output_path, told.published_version) == (own.slice_path, 1)


def test_plan_of_other_rows_takes_over_no_row(own: SliceJob) -> None:
    store, plan = folders_of(own).metadata, newest(own).plan
    body = store.read_document(plan)
    units = [[file, rows + 1, *part] for file, rows, *part in body["units"]]
    for forged in ({**body, "units": units}, {**body, "units": [[0, 2**40, 0, 2**40, None, 0, 9]]}):
        store.put_document(plan, forged)
        assert "cannot be identified" in refused(
            lambda: run_in_process(changed(own, rerun__retry_quarantined=True))
        )
        store.put_document(plan, body)


@pytest.mark.parametrize("body", [[], {"counts": {}}, {"counts": {"dropped": "1"}, "tokens": {}}])
def test_totals_of_another_shape_are_named(own: SliceJob, body: Any) -> None:
    metadata, version = folders_of(own).metadata, newest(own)
    checkpoint = Checkpoint(metadata, answers_fingerprint(own), version)
    plan = load_plan(metadata, version.plan)
    assert plan is not None
    checkpoint.save_carried_over(body)
    with pytest.raises(CorruptFileError, match=r"carried-over-000001\.json is damaged"):
        checkpoint.carried_over(plan)


# Numbers


FOREIGN = [
    "commits/commit-1000000000000.json", f"commits/commit-{ZEROS}2.json", "commits/commit-9.json",
    f"commits/complete-{10**15}-0123abcd", "kept/999999999999999999999/x", "kept/\u0663/x",
    f"staged/{10**20}-0123abcd/x", "lease/epoch-" + "9" * 200, "lease/beat-x",
    f"plans/plan-{10**15}-0123abcd.json", "../_columns/x.json", "../_columns/columns-x.json",
    f"../_columns/columns-{10**13}.json", f"../_columns/columns-{ZEROS}9.json",
]  # fmt: skip


def test_name_that_no_provider_gives_counts_for_nothing(own: SliceJob) -> None:
    for name in FOREIGN:
        (metadata(own) / name).parent.mkdir(parents=True, exist_ok=True)
        (metadata(own) / name).write_text("{}")
    assert run_in_process(asked_anew(own)).published_version == 2
    assert garbage.find_leftovers(own.address, 10, stale_seconds=0) == []
    assert answers(own) == ["a new", "b new"]
    assert all((metadata(own) / name).exists() for name in FOREIGN)


@pytest.mark.parametrize("name", [f"commits/commit-{LAST_NUMBER}.json", f"kept/{LAST_NUMBER}/x"])
def test_last_number_is_named_with_what_to_remove(own: SliceJob, name: str) -> None:
    store = folders_of(own).metadata
    body = {"format": versions.FORMAT, "void": True, "reason": "a forger's"}
    store.create_document(name, body)
    before, cluster = content_of(own), InProcess()
    assert "Remove it" in refused(lambda: run_in_process(asked_anew(own), cluster))
    assert (cluster.answered, content_of(own)) == (0, before)
    assert run_in_process(own).outcome == "unchanged"
    store.remove(name.removesuffix("/x"))
    assert run_in_process(asked_anew(own)).published_version == 2


def test_last_epoch_is_named_with_what_to_remove(own: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_raydatallm.processor.store.lease.STALE_SECONDS", 0.1)
    epoch = metadata(own) / "lease" / f"epoch-{LAST_NUMBER}"
    epoch.parent.mkdir(exist_ok=True)
    epoch.write_text("{}")
    assert str(epoch) in refused(lambda: run_in_process(asked_anew(own)))
    epoch.unlink()
    assert run_in_process(asked_anew(own)).published_version == 2


@pytest.mark.parametrize("kind", ["epoch", "beat"])
def test_lease_of_another_shape_is_waited_for_and_taken_over(
    own: SliceJob, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("airflow_provider_raydatallm.processor.store.lease.STALE_SECONDS", 0.05)
    store = folders_of(own).metadata
    for text in ("[]", "5", "[" * 100_000, '{"holder": [], "released": {}}', "?"):
        for name in ("epoch", kind):
            store.put(f"lease/{name}-000007", text.encode())
        held = lease.Lease.acquire(
            store,
            me="me",
            slice_key="k",
            known_epoch=lambda: 1,
            wait=True,
            stop_waiting=lambda holder: not str(holder),
        )
        assert held is not None
        assert held.epoch == 8
        held.close()
        lease.remove_leases(store, 8)


# What is no file, or too large


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_huge(path: Path) -> None:
    with open(path, "wb") as f:
        f.truncate(1 << 40)  # a hole


def make_folder(path: Path) -> None:
    path.mkdir()


KINDS = [make_fifo, make_endless, make_huge, make_folder]


@pytest.mark.parametrize("make", KINDS)
def test_commit_that_is_no_document_is_named_by_every_reader(
    own: SliceJob, make: Callable[[Path], None]
) -> None:
    path = metadata(own) / versions.commit_name(2)
    make(path)
    for ask in (
        lambda: run_in_process(own),
        lambda: published_report(own.paths),
        lambda: published_files(own.slice_path),
    ):
        assert "commit-000002.json is damaged" in refused(ask)
    assert read_state("2026-01-31", folders_of(own)).error
    assert run_in_process(changed(own, rerun__force=True)).published_version == 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_fifo, make_endless, make_huge])
def test_what_lies_where_a_run_reads_stops_no_other_reader(
    own: SliceJob, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_raydatallm.processor.store.lease.STALE_SECONDS", 0.1)
    (metadata(own) / "lease").mkdir(exist_ok=True)
    for name in ("progress.json", "lease/epoch-000007", "lease/beat-000007"):
        make(metadata(own) / name)
    make(metadata(own).parent / "_columns" / "columns-000009.json")
    assert read_progress(folders_of(own)) is None
    assert read_state("2026-01-31", folders_of(own)).version == 1
    assert run_in_process(own).outcome == "unchanged"
    assert run_in_process(asked_anew(own)).published_version == 2


@pytest.mark.parametrize("make", KINDS)
def test_plan_that_is_no_document_takes_over_no_row(own: SliceJob, make: Callable[[Path], None]) -> None:
    plan = metadata(own) / newest(own).plan
    plan.unlink()
    make(plan)
    assert "cannot be identified" in refused(
        lambda: run_in_process(changed(own, rerun__retry_quarantined=True))
    )


@pytest.mark.parametrize("make", [make_fifo, make_endless, make_folder])
def test_published_file_that_is_no_file_is_not_read(own: SliceJob, make: Callable[[Path], None]) -> None:
    [part] = Path(own.slice_path).glob("part-*")
    part.unlink()
    make(part)
    with pytest.raises(SliceError, match="no regular file"):
        published_dataset(own.slice_path)


def test_fragment_that_is_no_file_has_its_rows_answered_again(own: SliceJob) -> None:
    job = asked_anew(own)
    Path(own.input_path, "b.csv").write_text("name\n" + "x\n" * 8)
    job = changed(job, rerun__on_input_change="recompute")
    with pytest.raises(Killed):
        run_in_process(job, kill_after(3))
    for fragment in metadata(own).glob("checkpoint/*/rows-*"):
        fragment.unlink()
        os.mkfifo(fragment)
    assert run_in_process(job).published_version == 2
    assert answers(own) == ["a new", "b new", *["x new"] * 8]


# Links


LINKS = ["", "commits", "plans", "staged", "kept", "kept/000001", "lease", "checkpoint"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", LINKS)
def test_link_in_the_metadata_leads_nowhere(own: SliceJob, other: SliceJob, folder: str) -> None:
    """Through it a forger would have the other table's older versions published as their own, or removed."""
    run_in_process(asked_anew(other, "secret"))
    (metadata(other) / "lease").mkdir(exist_ok=True)
    (metadata(other) / "checkpoint" / "mine").mkdir(parents=True)
    target, link = metadata(other) / folder, metadata(own) / folder
    before = content_of(other)
    if link.exists():
        link.rename(metadata(own).parent / "_before")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    for ask in (
        lambda: run_in_process(asked_anew(own)),
        lambda: restore_version(own.address, 1),
        lambda: garbage.remove_leftovers(garbage.Leftovers(folders_of(own), 0, own.slice_key)),
        lambda: run_in_process(own),
    ):
        with contextlib.suppress(SliceError):
            ask()
        assert content_of(other) == before
    assert f"{link} is a link to {target}" in refused(lambda: run_in_process(asked_anew(own)))


@pytest.mark.parametrize("folder", ["own", "own.quarantine"])
def test_slice_folder_that_is_a_link_is_refused_and_nothing_removed_behind_it(
    own: SliceJob, other: SliceJob, lake: Path, folder: str
) -> None:
    link, target = lake / folder / "ds=2026-01-31", lake / folder.replace("own", "other") / "ds=2026-01-31"
    link.rename(lake / "before")
    link.symlink_to(target)
    before = content_of(other)
    assert f"{link} is a link" in refused(lambda: run_in_process(asked_anew(own)))
    assert content_of(other) == before


def test_link_beside_the_table_makes_no_other_quarantine_its_own(
    own: SliceJob, other: SliceJob, lake: Path
) -> None:
    beside = Path(own.paths.quarantine)
    beside.rename(lake / "before")
    beside.symlink_to(other.paths.quarantine)
    forge(own, quarantine_folder=other.paths.quarantine, files=[], quarantine=[])
    before = content_of(other)
    for job in (own, changed(own, publish__quarantine_path=f"{lake}/elsewhere")):
        assert f"{beside} is a link" in refused(lambda job=job: run_in_process(job))
    assert content_of(other) == before


def test_whole_table_may_be_a_link(lake: Path) -> None:
    for name in ("own", "own.ray_llm", "own.quarantine"):
        (lake.parent / "disk" / name).mkdir(parents=True)
        lake.mkdir(exist_ok=True)
        (lake / name).symlink_to(lake.parent / "disk" / name)
    job = table(lake, "own")
    run_in_process(job)
    assert run_in_process(asked_anew(job)).published_version == 2
    assert answers(job) == ["a new", "b new"]


def test_document_that_says_whose_a_folder_is_is_not_read_through_a_link(own: SliceJob, lake: Path) -> None:
    mark = lake / "own.ray_llm" / MARK
    claim = json.loads(mark.read_text())
    assert claim["body"]["kind"] == "table"
    (lake / "b").mkdir()
    (lake / "b.ray_llm").mkdir()
    (lake / "b.ray_llm" / MARK).symlink_to(mark)
    assert f"{lake}/b.ray_llm/{MARK} is damaged" in refused(lambda: run_in_process(table(lake, "b")))
