"""A folder belongs to one table: another table is refused before it pays for a row or changes a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import MARK
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.publish import garbage
from airflow_provider_raydatallm.processor.publish.restore import restore_version
from airflow_provider_raydatallm.processor.storage.probe import REMEMBERED
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.marks import Mark
from airflow_provider_raydatallm.processor.tables.listing import find_slices
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.s3_dialect import Dialect


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("name\na\nb\nfail\n")
    return tmp_path / "lake"


def table(lake: Path | str, output: str, **given: Any) -> SliceJob:
    """Of three rows, one of which fails; `{}` stands for the lake."""
    folders = {name: value.format(lake) if isinstance(value, str) else value for name, value in given.items()}
    source = Path(str(lake)).parent / "in" if not str(lake).startswith("s3") else given.pop("source")
    folders.pop("source", None)
    return job_of(
        input_path=str(source),
        output_path=output.replace("{}", str(lake)),
        quality__max_quarantine=1,
        **folders,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(job: SliceJob, lake: Path) -> str:
    before, cluster = content(lake), InProcess()
    with pytest.raises(SliceError) as e:
        run_in_process(job, cluster)
    assert (e.value.kind, cluster.answered) == ("input", 0)
    assert content(lake) == before
    return str(e.value)


QUARANTINE, METADATA = "publish__quarantine_path", "publish__metadata_path"
ELSEWHERE = {QUARANTINE: "{}/failed", METADATA: "{}/meta"}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "other", "says"), [
    ({}, {"output": "{}/a/inner"}, "lies inside the table {}/a"),
    ({}, {"output": "{}/a/ds=2026-01-31"}, "lies inside the table {}/a"),
    ({}, {"output": "file://{}/a/ds=2026-01-31/x/y"}, "lies inside the table {}/a"),
    ({}, {"output": "{}/a.quarantine"}, "is the quarantine of {}/a"),
    ({}, {"output": "{}/a.quarantine/ds=2026-01-31/x"}, "lies inside the quarantine of {}/a"),
    ({}, {"output": "{}/a.trial/x"}, "lies inside the trials of {}/a"),
    ({}, {"output": "{}/a.ray_llm/x"}, "lies inside the metadata of {}/a"),
    ({}, {"output": "{}/b", QUARANTINE: "{}/a"}, "publish.quarantine_path {}/a is the table {}/a"),
    ({}, {"output": "{}/b", QUARANTINE: "{}/a/x"}, "lies inside the table {}/a"),
    ({}, {"output": "{}/b", QUARANTINE: "{}/a.quarantine"}, "is the quarantine of {}/a"),
    ({}, {"output": "{}/b", METADATA: "{}/a.ray_llm"}, "is the metadata of {}/a"),
    ({}, {"output": "{}/b", METADATA: "{}/a"}, "publish.metadata_path {}/a is the table {}/a"),
    ({}, {"output": "{}"}, "holds another table"),
    ({}, {"output": "{}/b", QUARANTINE: "{}"}, "lies inside publish.quarantine_path"),
    ({}, {"output": "{}/../b", QUARANTINE: "{}/"}, "holds another table"),
    ({"output": "{}/b.quarantine/a"}, {"output": "{}/b"}, "publish.quarantine_path {}/b.quarantine holds"),
    (ELSEWHERE, {"output": "{}/b", QUARANTINE: "{}/failed"}, "is the quarantine of {}/a"),
    (ELSEWHERE, {"output": "{}/b", QUARANTINE: "file://{}//failed/"}, "is the quarantine of {}/a"),
    (ELSEWHERE, {"output": "{}/b", QUARANTINE: "{}/failed/x"}, "lies inside the quarantine of {}/a"),
    (ELSEWHERE, {"output": "{}/failed"}, "is the quarantine of {}/a"),
    (ELSEWHERE, {"output": "{}/failed/x"}, "lies inside the quarantine of {}/a"),
    (ELSEWHERE, {"output": "{}/failed.ray_llm/x"}, "lies inside the metadata of {}/a"),
    (ELSEWHERE, {"output": "{}/b", METADATA: "{}/meta"}, "is the metadata of {}/a"),
    (ELSEWHERE, {"output": "{}/meta"}, "is the metadata of {}/a"),
    (ELSEWHERE, {"output": "{}/meta/x"}, "lies inside the metadata of {}/a"),
    ({"output": "{}/{slice}/a"}, {"output": "{}/2026-01-31/a/b"}, "lies inside the table {}/2026-01-31/a"),
])  # fmt: skip
@pytest.mark.parametrize("has_slice", [True, False])
def test_folder_of_another_table_is_refused_and_nothing_changes(
    lake: Path, first: dict[str, str], other: dict[str, str], says: str, has_slice: bool
) -> None:
    """Of a slice that the first table has, more than one check may see that."""
    run_in_process(table(lake, **{"output": "{}/a", **first}))
    key = {} if has_slice else {"slice_key": "2026-02-01"}
    other = {name: value.replace("{}/..", str(lake.parent)) for name, value in other.items()}
    error = refused(table(lake, **other, **key), lake)
    assert has_slice or says.replace("{}", str(lake)) in error


def test_quarantine_is_one_table_s_also_through_a_link(lake: Path) -> None:
    run_in_process(table(lake, "{}/a", publish__quarantine_path="{}/failed"))
    (lake / "link").symlink_to("failed")
    error = refused(table(lake, "{}/b", publish__quarantine_path="{}/link"), lake)
    assert f"is the quarantine of {lake}/a, as {lake}/failed.ray_llm/{MARK} says" in error


@pytest.mark.parametrize("given", [
    {QUARANTINE: "{}/x", METADATA: "{}/x"}, {"output": "{}/x/a", QUARANTINE: "{}/x"},
    {QUARANTINE: "{}/x", METADATA: "{}/x/y"}, {QUARANTINE: "{}/link/x"}, {METADATA: "{}/link"},
])  # fmt: skip
def test_folders_of_one_table_lie_apart(lake: Path, given: dict[str, str]) -> None:
    (lake / "a").mkdir(parents=True)
    (lake / "link").symlink_to("a")
    assert "lies inside" in refused(table(lake, **{"output": "{}/a", **given}), lake)


@pytest.mark.parametrize("command", [
    lambda job: garbage.find_leftovers(job.address, -1, stale_seconds=0),
    lambda job: restore_version(job.address, 1),
], ids=["gc", "restore"])  # fmt: skip
@pytest.mark.parametrize("has_run", [True, False])
def test_command_that_writes_asks_first_whose_the_folders_are(
    lake: Path, command: Callable[[SliceJob], object], has_run: bool
) -> None:
    other = table(lake, "{}/a", publish__keep_versions=2)
    run_in_process(other)
    (lake / "a.ray_llm" / "ds=2026-01-31" / "checkpoint" / "q").mkdir(parents=True)
    (lake / "a.ray_llm" / "ds=2026-01-31" / "checkpoint" / "q" / "f").write_bytes(b"rows")
    if has_run:
        run_in_process(table(lake, "{}/b"))
    before = content(lake)
    for given in ({METADATA: "{}/a.ray_llm"}, {METADATA: "file://{}/a.ray_llm/"}):
        with pytest.raises(SliceError, match=f"is the metadata of {lake}/a") as e:
            command(table(lake, "{}/b", **given))
        assert (e.value.kind, content(lake)) == ("input", before)
    command(other)


@pytest.mark.parametrize("key", ["2026-01-31", "2026-02-01"])
@pytest.mark.parametrize("has_run", [True, False])
def test_link_to_another_table_is_no_table_of_its_own(lake: Path, has_run: bool, key: str) -> None:
    """Also where a table's folder was replaced by it. A slice that both have is refused before that."""
    run_in_process(table(lake, "{}/a"))
    if has_run:
        run_in_process(table(lake, "{}/b"))
        (lake / "b").rename(lake / "old")
    (lake / "b").symlink_to("a")
    mine = table(lake, "{}/b", slice_key=key, rerun__force=True)
    error = refused(changed(mine, prompt="{name} mine"), lake)
    assert key == "2026-01-31" or f"is the table {lake}/a, as {lake}/a.ray_llm/{MARK} says" in error
    assert run_in_process(table(lake, "{}/a")).outcome == "unchanged"


def test_table_that_comes_to_be_behind_a_link_is_seen(lake: Path) -> None:
    (lake / "a").mkdir(parents=True)
    (lake / "b").symlink_to("a")
    run_in_process(table(lake, "{}/b"))
    assert run_in_process(table(lake, "{}/b", slice_key="2026-02-01")).outcome == "published"
    Mark(f"{lake}/a.ray_llm", "table").write()
    assert f"is the table {lake}/a" in refused(table(lake, "{}/b", slice_key="2026-03-01"), lake)


@pytest.mark.parametrize("name", ["a.quarantine", "a.trial"])
def test_document_beside_a_folder_does_not_outweigh_the_one_of_its_table(lake: Path, name: str) -> None:
    first = table(lake, "{}/a")
    run_in_process(first)
    Mark(f"{lake}/{name}.ray_llm", "quarantine", f"{lake}/b").write()
    error = refused(table(lake, "{}/b", publish__quarantine_path=f"{{}}/{name}"), lake)
    assert f"{lake}/{name}.ray_llm/{MARK}" in error
    assert f"{lake}/a.ray_llm/{MARK}" in error
    assert run_in_process(changed(first, slice_key="2026-02-01")).outcome == "published"


def test_each_folder_says_whose_it_is(lake: Path) -> None:
    for _ in range(2):
        run_in_process(table(lake, "{}/a"))
        run_in_process(table(lake, "{}/b", **ELSEWHERE))
    marks = {str(path.relative_to(lake)) for path in lake.rglob(MARK)}
    assert marks == {f"{name}/{MARK}" for name in ("a.ray_llm", "b.ray_llm", "failed.ray_llm", "meta")}
    assert str(lake) not in (lake / "a.ray_llm" / MARK).read_text()
    assert Mark.read(f"{lake}/failed.ray_llm") == Mark(f"{lake}/failed.ray_llm", "quarantine", f"{lake}/b")


@pytest.mark.slow
def test_tables_beside_each_other_and_trials_are_accepted(lake: Path) -> None:
    for output in ("{}/a", "{}/a.b", "{}/ab", "{}/c/a"):
        run_in_process(table(lake, output, source__max_rows=2))
        run_in_process(table(lake, output))
        run_in_process(table(lake, output, source__max_rows=2, source__trial="mine"))
    for name in ("one", "two"):
        run_in_process(table(lake, f"{{}}/days/{{slice}}/{name}"))
    run_in_process(
        table(lake, "{}/d", publish__quarantine_path="{}/d.quarantine", publish__metadata_path="{}/d.ray_llm")
    )
    assert not (lake / "d.quarantine.ray_llm").exists()


def test_documents_are_no_slices_for_commands(lake: Path) -> None:
    job = table(lake, "{}/a", **ELSEWHERE)
    run_in_process(job)
    assert [key for key, _ in find_slices(job.output_path, job.publish.metadata_path)] == ["2026-01-31"]
    assert garbage.find_leftovers(job.address, -1, stale_seconds=0) == []
    plain = table(lake, "{}/b")
    run_in_process(plain)
    assert [key for key, _ in find_slices(plain.output_path)] == ["2026-01-31"]
    assert garbage.find_leftovers(plain.address, -1, stale_seconds=0) == []


# Tables that move, and tables of older providers


def test_table_may_be_moved_or_copied_with_what_lies_beside_it(lake: Path) -> None:
    run_in_process(table(lake, "{}/a"))
    shutil.copytree(lake, lake.parent / "copy")
    lake.rename(lake.parent / "moved")
    for folder in ("copy", "moved"):
        there = lake.parent / folder
        assert run_in_process(table(there, "{}/a")).outcome == "unchanged"
        assert run_in_process(table(there, "{}/a", slice_key="2026-02-01")).outcome == "published"


def test_table_that_leaves_its_quarantine_is_told_which_file_to_remove(lake: Path) -> None:
    run_in_process(table(lake, "{}/a", publish__quarantine_path="{}/failed"))
    for name in ("a", "a.ray_llm"):
        (lake / name).rename(lake / name.replace("a", "b", 1))
    moved = table(lake, "{}/b", publish__quarantine_path="{}/failed", slice_key="2026-02-01")
    mark = lake / "failed.ray_llm" / MARK
    assert f"as {mark} says. Give" in refused(moved, lake)
    mark.unlink()
    assert run_in_process(moved).outcome == "published"
    assert Mark.read(str(mark.parent)) == Mark(str(mark.parent), "quarantine", f"{lake}/b")


def forget(lake: Path) -> None:
    """As older providers left it."""
    for path in [*lake.rglob(MARK), *lake.rglob(REMEMBERED)]:
        path.unlink()
    shutil.rmtree(lake / "failed.ray_llm", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("has_slice", [True, False])
@pytest.mark.parametrize("shared", [QUARANTINE, METADATA])
def test_table_of_an_older_provider_keeps_its_folders(lake: Path, shared: str, has_slice: bool) -> None:
    first = table(lake, "{}/a", **ELSEWHERE)
    run_in_process(first)
    forget(lake)
    given = {shared: ELSEWHERE[shared]}
    if not has_slice:
        given["slice_key"] = "2026-02-01"
    assert f"{lake}/b" in refused(table(lake, "{}/b", **given), lake)
    run_in_process(changed(first, slice_key="2026-02-01"))
    assert {path.parent.name for path in lake.rglob(MARK)} == {"a.ray_llm", "failed.ray_llm", "meta"}
    given["slice_key"] = "2026-03-01"
    assert "is the " in refused(table(lake, "{}/b", **given), lake)


def test_table_of_an_older_provider_in_another_one_is_seen(lake: Path) -> None:
    run_in_process(table(lake, "{}/a/inner"))
    forget(lake)
    assert "holds another table" in refused(table(lake, "{}/a"), lake)


def test_damaged_document_is_named(lake: Path) -> None:
    (lake / "failed.ray_llm").mkdir(parents=True)
    (lake / "failed.ray_llm" / MARK).write_text("?")
    job, cluster = table(lake, "{}/a", publish__quarantine_path="{}/failed"), InProcess()
    with pytest.raises(SliceError, match=f"{lake}/failed.ray_llm/{MARK} is damaged"):
        run_in_process(job, cluster)
    assert cluster.answered == 0
    (lake / "a").mkdir(exist_ok=True)
    (lake / MARK).write_text('{"mine": 1}')
    run_in_process(table(lake, "{}/b"))  # a file of that name above it is somebody's


# Object stores


@pytest.mark.slow
def test_folders_on_a_store_are_known_by_any_scheme(lake: Path, s3_store: Store) -> None:
    root, alias = s3_store.url, s3_store.url.replace("s3://", "s3a://")
    run_in_process(table(root, "{}/a", publish__quarantine_path="{}/failed", source=lake.parent / "in"))
    before, cluster = s3_store.tree(""), InProcess()
    for output, quarantine in (("b", "failed"), ("a/inner", "other"), ("failed", "other"), ("", "other")):
        job = table(
            alias,
            f"{{}}/{output}",
            publish__quarantine_path=f"{alias}-{quarantine}",
            source=lake.parent / "in",
        )
        job = changed(job, publish__quarantine_path=f"{alias}/failed") if quarantine == "failed" else job
        with pytest.raises(SliceError) as e:
            run_in_process(job, cluster)
        assert e.value.kind == "input"
    assert cluster.answered == 0
    assert s3_store.tree("") == before


@pytest.mark.slow
def test_later_slices_ask_once_for_each_folder_elsewhere(
    lake: Path, s3_store: Store, dialect: Dialect
) -> None:
    counts = []
    for given in ({}, {QUARANTINE: "{}/failed"}, ELSEWHERE):
        root = f"{s3_store.url}/{len(counts)}"
        for key in ("2026-01-30", "2026-01-31"):
            dialect.requests.clear()
            run_in_process(table(root, "{}/a", slice_key=key, source=lake.parent / "in", **given))
            asked = [path for method, path in dialect.requests if method == "GET" and path.endswith(".json")]
            asked = [path for path in asked if path.endswith((MARK, REMEMBERED))]
        counts.append(len(asked))
    # The quarantine's once more, before the version is shown there.
    assert counts == [1, 3, 4]


def test_what_this_identity_may_not_see_is_nobody_s(s3_store: Store, dialect: Dialect) -> None:
    Mark(f"{s3_store.url}/a.ray_llm", "table").write()
    dialect.denied = -1
    assert Mark.read(f"{s3_store.url}/a.ray_llm") is None
    with pytest.raises(SliceError, match=r"File name too long: cannot read "):
        Mark.read(f"/{'x' * 300}")


def test_of_two_tables_that_take_a_folder_at_once_one_has_it(s3_store: Store) -> None:
    one, other = (Mark(s3_store.url, "quarantine", f"s3://lake/{name}") for name in ("one", "other"))
    one.write()
    one.write()
    with pytest.raises(SliceError, match="names the table s3://lake/one") as e:
        other.write()
    assert (e.value.kind, Mark.read(s3_store.url)) == ("input", one)
