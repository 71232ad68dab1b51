"""Which files are an input: docs/input.md has a line for each rule here."""

from __future__ import annotations

import gzip
import os
import re
import socket
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.input.listing import Listing, list_input
from airflow_provider_raydatallm.processor.input.survey import make_plan
from airflow_provider_raydatallm.processor.storage.store import Store
from tests.support.in_process import job_of
from tests.support.s3_dialect import Dialect


def listed(path: Path | str, **given: Any) -> Listing:
    return list_input(job_of(**{"input_path": str(path), "output_path": "/elsewhere/out", **given}))


def names(path: Path | str, below: Path | str, **given: Any) -> list[str]:
    """The input's files, by their names below a folder."""
    root = str(below).partition("://")[2] or str(below)
    return [file.path.removeprefix(f"{root}/") for file in listed(path, **given).files]


def write(folder: Path, *files: str) -> None:
    """Each file holds its own name."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"name\n{name}\n")


def put(store: Store, *keys: str) -> None:
    """As other clients write: markers are empty."""
    bucket, root, _ = store.fs.split_path(store.root)
    for key in keys:
        body = b"" if key.endswith(("/", "$")) or "." not in key else f"name\n{key}\n".encode()
        store.fs.call_s3("put_object", Bucket=bucket, Key=f"{root}/{key}", Body=body)


def refused(path: Path | str, **given: Any) -> str:
    with pytest.raises(SliceError) as e:
        listed(path, **given)
    assert e.value.kind == "input"
    return str(e.value)


# Markers


@pytest.mark.slow
def test_markers_of_folders_are_nothing_at_any_depth(s3_store: Store) -> None:
    put(s3_store, "in/", "in/a.csv", "in/sub/", "in/sub/b.csv", "in/sub/deep", "in/sub/deep/c.csv")
    put(
        s3_store,
        "in/x_$folder$",
        "in/sub/x_$folder$",
        "in/empty/",
        "in/ds=2026-01-31/",
        "in/ds=2026-01-31/d.csv",
    )
    every = ["a.csv", "ds=2026-01-31/d.csv", "sub/b.csv", "sub/deep/c.csv"]
    root = f"{s3_store.url}/in"
    assert names(root, root) == every
    assert names(f"{root}/", root) == every
    assert names(f"{root}/**", root) == every
    assert names(f"{root}/*/*.csv", root) == ["ds=2026-01-31/d.csv", "sub/b.csv"]
    assert names(root, root, source__column="ds") == every
    assert make_plan(job_of(input_path=root, output_path="/o", source__column="name")).files == 4


def test_folder_that_holds_only_its_marker_has_no_files(s3_store: Store) -> None:
    put(s3_store, "in/", "in2")
    for path in ("in", "in/", "in2", "nowhere", "in/*.csv"):
        assert names(f"{s3_store.url}/{path}", s3_store.url) == []


def test_object_whose_name_ends_as_a_folder_and_holds_something_is_refused(s3_store: Store) -> None:
    bucket, root, _ = s3_store.fs.split_path(s3_store.root)
    s3_store.fs.call_s3("put_object", Bucket=bucket, Key=f"{root}/in/x/", Body=b"rows")
    assert f"{s3_store.url}/in/x/ holds 4 bytes" in refused(f"{s3_store.url}/in")


def test_key_with_an_empty_name_is_another_key(s3_store: Store) -> None:
    put(s3_store, "in/a.csv", "in//a.csv")
    assert names(f"{s3_store.url}/in", s3_store.url) == ["in//a.csv", "in/a.csv"]
    assert names(f"{s3_store.url}/in//a.csv", s3_store.url) == ["in//a.csv"]
    job = job_of(input_path=f"{s3_store.url}/in//a.csv", output_path="/o")
    [unit] = make_plan(job).units
    [table] = make_plan(job).read(unit)
    assert table.column("name").to_pylist() == ["in//a.csv"]


# Hidden names


def test_names_that_begin_with_an_underscore_or_a_dot_are_skipped_with_all_below(tmp_path: Path) -> None:
    write(
        tmp_path, "a.csv", "_b.csv", ".c.csv", "_d/e.csv", "f/_g/h.csv", "f/i.csv", "out.ray_llm/x/plan.json"
    )
    assert names(tmp_path, tmp_path) == ["a.csv", "f/i.csv"]
    assert names(f"{tmp_path}/**/*.csv", tmp_path) == ["a.csv", "f/i.csv"]
    assert names(tmp_path / "_d", tmp_path) == ["_d/e.csv"], "the folder that input_path names is read"
    assert names(tmp_path / "_b.csv", tmp_path) == []


def test_folder_that_cannot_be_listed_is_an_error_and_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.csv", "locked/b.csv")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if path.endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SliceError, match=f"^Permission denied: cannot list .*{tmp_path}"):
        listed(tmp_path)


# Links, and what is no file


def test_input_path_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path, "real/a.csv")
    (tmp_path / "in").symlink_to("real")
    (tmp_path / "file.csv").symlink_to("real/a.csv")
    assert names(tmp_path / "in", tmp_path) == ["in/a.csv"]
    assert names(f"{tmp_path}/in/*.csv", tmp_path) == ["in/a.csv"]
    assert names(tmp_path / "file.csv", tmp_path) == ["file.csv"]


def test_link_to_another_file_below_the_input_is_that_file(tmp_path: Path) -> None:
    write(tmp_path, "in/_versions/2/a.csv")
    (tmp_path / "in/_now").symlink_to("_versions/2")
    (tmp_path / "in/a.csv").symlink_to("_now/a.csv")
    (tmp_path / "root").symlink_to("in")
    for root in ("in", "root"):
        [file] = listed(tmp_path / root).files
        assert (file.path, file.size) == (f"{tmp_path}/{root}/a.csv", len("name\nin/_versions/2/a.csv\n"))


@pytest.mark.parametrize(("target", "why"), [
    ("../secret", "is outside of"), ("/etc/hostname", "is outside of"), ("../in2/x.csv", "is outside of"),
    ("../nowhere", "is outside of"), ("nowhere.csv", "does not exist"), ("x.csv", "is a link to"),
    ("b.csv", "is a file of the input, too"), ("_fifo", "is a FIFO"), ("/dev/zero", "is outside of"),
])  # fmt: skip
def test_link_that_leads_elsewhere_is_refused_by_name(tmp_path: Path, target: str, why: str) -> None:
    write(tmp_path, "secret", "in/b.csv", "in2/x.csv")
    os.mkfifo(tmp_path / "in/_fifo")
    (tmp_path / "in/x.csv").symlink_to(target)
    error = refused(tmp_path / "in")
    assert f"{tmp_path}/in/x.csv is a link to {os.path.realpath(tmp_path / 'in' / target)}, which" in error
    assert why in error
    assert names(f"{tmp_path}/in/b*.csv", tmp_path) == ["in/b.csv"], "a pattern that leaves it out"


def test_two_links_to_one_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "_a.csv")
    for name in ("1.csv", "2.csv"):
        (tmp_path / name).symlink_to("_a.csv")
    assert "its rows would come twice" in refused(tmp_path)


def test_link_to_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/x.csv", "in/a.csv", "in/b/c.csv")
    for name in ("inside", "_hidden", "ds=2026-01-30"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "in", f"{tmp_path}/in/*", f"{tmp_path}/in/*/*.csv", f"{tmp_path}/in/**/*.csv"):
        error = refused(path, source__column="ds")
        assert f"{tmp_path}/in/inside is a link to {tmp_path}/elsewhere, which is a folder" in error
    (tmp_path / "in/inside").unlink()
    assert names(tmp_path / "in", tmp_path, source__column="ds") == ["in/a.csv", "in/b/c.csv"]


def test_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("a.csv")
    assert "a.csv is a link to" in refused(tmp_path)
    assert "a.csv is a link to" in refused(tmp_path / "a.csv")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device"])
def test_what_is_no_file_is_refused_by_name_and_never_opened(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "a.csv")
    path = tmp_path / "b.csv"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.relpath(path))
    else:
        path = Path("/dev/zero")
    for address in (path, tmp_path) if path.parent == tmp_path else (path,):
        assert f"{path} is {kind}" in refused(address)
    assert names(f"{tmp_path}/a*", tmp_path) == ["a.csv"]
    path.rename(tmp_path / "_b.csv") if path.parent == tmp_path else None
    assert names(tmp_path, tmp_path) == ["a.csv"]


# Patterns


FILES = ["a.csv", "b/c.csv", "b/d/e.csv", "b2/f.csv", "b2/g.json", "[b]/h.csv", "x*y/i.csv", "xzy/j.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "expected"), [
    ("*.csv", ["a.csv"]),
    ("*/*.csv", ["[b]/h.csv", "b/c.csv", "b2/f.csv", "x*y/i.csv", "xzy/j.csv"]),
    ("b*", ["b/c.csv", "b/d/e.csv", "b2/f.csv", "b2/g.json"]),
    ("b?/", ["b2/f.csv", "b2/g.json"]),
    ("b/**/*.csv", ["b/c.csv", "b/d/e.csv"]),
    ("**/d", ["b/d/e.csv"]),
    ("b*/**", ["b/c.csv", "b/d/e.csv", "b2/f.csv", "b2/g.json"]),
    ("*.csv/**", []),
    ("**", sorted(FILES)),
    ("[ab]", ["b/c.csv", "b/d/e.csv"]),
    ("[ab].csv", ["a.csv"]),
    ("[!b]*/*.csv", ["[b]/h.csv", "x*y/i.csv", "xzy/j.csv"]),
    ("[b]", ["[b]/h.csv"]),
    ("[b]/*.csv", ["b/c.csv"]),
    ("x*y", ["x*y/i.csv"]),
    ("x*y/*.csv", ["x*y/i.csv", "xzy/j.csv"]),
    ("nothing*", []),
    ("a.csv/*", []),
])  # fmt: skip
@pytest.mark.parametrize("where", ["disk", "s3"])
def test_pattern_matches_names_and_what_has_its_very_name_wins(
    tmp_path: Path, request: pytest.FixtureRequest, where: str, pattern: str, expected: list[str]
) -> None:
    if where == "disk":
        write(tmp_path, *FILES)
        root = str(tmp_path)
    else:
        store = request.getfixturevalue("s3_store")
        put(store, *FILES)
        root = store.url
    assert names(f"{root}/{pattern}", root) == expected


def test_double_star_within_a_name_is_refused_with_what_to_write() -> None:
    assert "Write **/*.csv" in refused("s3://lake/in/**.csv")


def test_pattern_in_place_of_a_bucket_is_refused() -> None:
    assert "in place of the bucket" in refused("s3://la*/in")


# Hive folders


DATASET = {
    "ds=2026-01-31/a.csv": 10, "x/ds=2026-01-31/b.csv": 10, "y/ds=2026-01-31/deep/c.csv": 10,
    "ds=2026-01-30/d.csv": 3, "x/ds=2026-01-30/e.csv": 3, "x/ds=2026%2D01%2D31/f.csv": 1,
    "ds=2026-01-31/ds=2026-01-30/g.csv": 5,
}  # fmt: skip


def write_dataset(folder: Path) -> None:
    for name, rows in DATASET.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("n\n" + "".join(f"{name} {i}\n" for i in range(rows)))
    loose = [("2026-01-31", 4), ("2026-01-30", 2)]
    (folder / "loose.csv").write_text("n,ds\n" + "".join(f"l,{day}\n" * rows for day, rows in loose))


@pytest.mark.parametrize("key", ["2026-01-31", "2026-01-30"])
def test_slice_has_all_folders_of_its_key_at_any_depth_and_its_rows_of_loose_files(
    tmp_path: Path, key: str
) -> None:
    write_dataset(tmp_path)
    plan = make_plan(
        job_of(input_path=str(tmp_path), output_path="/o/{slice}", source__column="ds", slice_key=key)
    )
    # Where a path has two such folders, DuckDB takes one, and here none is the slice's.
    hive = [str(path) for path in tmp_path.rglob("*.csv") if str(path).count("ds=") == 1]
    query = "select count(*) from read_csv(?, hive_partitioning=true, all_varchar=true) where ds = ?"
    counts = [
        duckdb.sql(query, params=[paths, key]).fetchall() for paths in (hive, [f"{tmp_path}/loose.csv"])
    ]
    expected = sum(count for [(count,)] in counts)
    assert plan.rows == expected == {"2026-01-31": 35, "2026-01-30": 8}[key]


def test_file_tells_all_its_hive_folders(tmp_path: Path) -> None:
    write(tmp_path, "a=1/b=x%2Fy/a=2/c=__HIVE_DEFAULT_PARTITION__/d/e.csv")
    [file] = listed(tmp_path).files
    assert file.partition == (("a", "1"), ("b", "x/y"), ("a", "2"), ("c", None))


def test_folders_of_other_slices_are_not_listed(s3_store: Store, dialect: Dialect) -> None:
    put(s3_store, *(f"{c}/ds=2026-01-{d:02}/h={h}/a.csv" for c in "xy" for d in (1, 2, 31) for h in range(3)))
    dialect.requests.clear()
    found = names(s3_store.url, s3_store.url, source__column="ds")
    assert found == [f"{c}/ds=2026-01-31/h={h}/a.csv" for c in "xy" for h in range(3)]
    prefixes = sorted(re.findall(r"prefix=([^&]*)", " ".join(path for _, path in dialect.requests)))
    root = s3_store.root.partition("/")[2]
    of = [f"{root}/", *(f"{root}/{c}/" for c in "xy"), *(f"{root}/{c}/ds=2026-01-31/" for c in "xy")]
    assert [p.replace("%2F", "/").replace("%3D", "=") for p in prefixes] == sorted(of)


def test_folder_without_a_slice_column_takes_one_listing(s3_store: Store, dialect: Dialect) -> None:
    put(s3_store, *(f"{c}/{d}/a.csv" for c in "xy" for d in range(3)))
    for path in ("", "/**/*.csv"):
        dialect.requests.clear()
        assert len(names(s3_store.url + path, s3_store.url)) == 6
        assert (
            len([1 for _, path in dialect.requests if "delimiter" not in path and "list-type" in path]) == 1
        )


# The task's own folders


OWN = ["out/ds=2026-01-31", "out/ds=2026-01-30", "out.quarantine/ds=2026-01-30", "out.trial/a/ds=2026-01-30"]


@pytest.mark.parametrize("spelled", ["{}", "file://{}", "relative", "/{}", "linked"])
def test_pattern_never_matches_what_the_task_wrote_on_any_day(
    tmp_path: Path, spelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spelled == "relative":
        monkeypatch.chdir(tmp_path)
        output = "out"
    elif spelled == "linked":
        (tmp_path.parent / f"{tmp_path.name}-link").symlink_to(tmp_path)
        output = f"{tmp_path.parent}/{tmp_path.name}-link/out"
    else:
        output = spelled.format(tmp_path / "out")
    write(
        tmp_path, *(f"{folder}/a.csv" for folder in (*OWN, "out.other", "in")), "failed/x.csv", "meta/y.csv"
    )
    given = {
        "output_path": output,
        "publish__quarantine_path": f"{tmp_path}//failed",
        "publish__metadata_path": f"{tmp_path}/meta",
    }
    for pattern in ("*", "**", "**/*.csv", "*/*"):
        assert names(f"{tmp_path}/{pattern}", tmp_path, **given) == ["in/a.csv", "out.other/a.csv"]


def test_pattern_never_matches_what_the_task_wrote_where_each_slice_is_a_table(tmp_path: Path) -> None:
    for day in ("30", "31"):
        write(
            tmp_path,
            f"2026-01-{day}/in/a.csv",
            f"2026-01-{day}/out/b.csv",
            f"2026-01-{day}.quarantine/out/c.csv",
        )
    given = {"output_path": f"{tmp_path}/{{slice}}/out"}
    assert names(f"{tmp_path}/*", tmp_path, **given) == ["2026-01-30/in/a.csv", "2026-01-31/in/a.csv"]
    assert names(f"{tmp_path}/{{slice}}/*", tmp_path, **given) == ["2026-01-31/in/a.csv"]


def test_published_slices_can_be_the_input_of_another_slice(tmp_path: Path) -> None:
    write(tmp_path, *(f"{folder}/a.csv" for folder in OWN), "out/ds=2026-01-29/a.csv")
    output = {"output_path": f"{tmp_path}/out"}
    assert names(tmp_path / "out/ds=2026-01-30", tmp_path, **output) == ["out/ds=2026-01-30/a.csv"]
    earlier = ["out/ds=2026-01-29/a.csv", "out/ds=2026-01-30/a.csv"]
    assert names(f"{tmp_path}/out/ds=*", tmp_path, **output) == earlier
    assert names(f"{tmp_path}/out/ds=2026-01-31/*", tmp_path, **output) == []
    failed = f"{tmp_path}/out.quarantine/ds=2026-01-30"
    assert names(failed, tmp_path, **output) == ["out.quarantine/ds=2026-01-30/a.csv"]


def test_own_folders_on_a_store_are_known_by_any_scheme(s3_store: Store) -> None:
    put(s3_store, "in/a.csv", "out/ds=2026-01-30/b.csv", "out.trial/x/c.csv")
    output = s3_store.url.replace("s3://", "s3a://") + "/out"
    for pattern in ("*", "**", "*/*"):
        assert names(f"{s3_store.url}/{pattern}", s3_store.url, output_path=output) == ["in/a.csv"]


# Errors


def test_listing_that_is_denied_names_the_path_and_says_so(s3_store: Store, dialect: Dialect) -> None:
    put(s3_store, "in/a.csv")
    dialect.denied = -1
    for path in ("in", "in/*.csv", "in/a.csv"):
        with pytest.raises(
            SliceError, match=rf"(?i)denied.*: cannot list {re.escape(s3_store.url)}/{re.escape(path)}"
        ):
            listed(f"{s3_store.url}/{path}")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.jsonl"])
def test_reading_that_is_denied_names_the_file_and_says_so(
    s3_store: Store, dialect: Dialect, name: str
) -> None:
    """A listing may be allowed, and reading not."""
    parquet = pa.BufferOutputStream()
    pq.write_table(pa.table({"name": ["a"]}), parquet)
    texts = {"a.csv": b"name\na\n", "a.jsonl": b'{"name": "a"}\n', "a.csv.gz": gzip.compress(b"name\na\n")}
    s3_store.put(name, texts.get(name, parquet.getvalue().to_pybytes()))
    job = job_of(input_path=f"{s3_store.url}/{name}", output_path="/o")
    listing = list_input(job)
    plan = make_plan(job, listing)
    dialect.denied = -1
    for read in (lambda: make_plan(job, listing), lambda: list(plan.read(plan.units[0]))):
        with pytest.raises(SliceError, match=rf"{name} could not be read: access was denied \(Forbidden\)"):
            read()


def test_missing_bucket_is_named(dialect: Dialect) -> None:
    assert "s3://no-such-bucket/in cannot be listed" in refused("s3://no-such-bucket/in")


def test_listing_is_the_same_however_the_root_is_written(tmp_path: Path) -> None:
    write(tmp_path, "in/a.csv", "in/b/c.csv")
    assert (
        listed(f"{tmp_path}/in").hash
        == listed(f"{tmp_path}/in/").hash
        == listed(f"file://{tmp_path}/in").hash
    )
    assert [f.path for f in listed(f"{tmp_path}//in").files] == [
        f"{tmp_path}//in/a.csv",
        f"{tmp_path}//in/b/c.csv",
    ]
