"""Fragments in a local folder: a reader finds what a writer put, in any order, or reports damage."""

from __future__ import annotations

import json
import random
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage import arrow_files
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store import fragments as fragments_module
from airflow_provider_raydatallm.processor.store.fragment_reader import FragmentReader
from airflow_provider_raydatallm.processor.store.fragments import (
    FragmentWriter,
    fragment_fields,
    fragment_ranges,
    put_fragment,
)
from airflow_provider_raydatallm.processor.store.ledger import Ledger, content_hash, read_ledger

IDS = [f"{i:016x}" for i in range(4)]
UNITS = {unit: i for i, unit in enumerate(IDS)}
FIELDS = [pa.field("answer", pa.string())]


def table(rows: list[tuple[int, int]], mark: str = "") -> pa.Table:
    return pa.table({
        "__unit": pa.array([u for u, _ in rows], pa.int32()),
        "__offset": pa.array([o for _, o in rows], pa.int64()), "answer": [f"{u}-{o}{mark}" for u, o in rows],
    })  # fmt: skip


def ledger(store: Store) -> Ledger:
    return read_ledger(store.names("c"), UNITS, lambda n: fragment_ranges(store, f"c/{n}", UNITS))


def reader(store: Store, fields: list[pa.Field] = FIELDS) -> FragmentReader:
    [pieces] = ledger(store).rows.divide([range(len(IDS))], len(IDS))
    return FragmentReader(store, "c", pieces, UNITS, fields)


def read_all(store: Store, step: int = 7) -> list[tuple[int, int, str]]:
    r = reader(store)
    result = []
    for unit in range(len(IDS)):
        for start in range(0, 60, step):
            offsets, found = r.window(unit, start, start + step)
            result += [(unit, int(o), a) for o, a in zip(offsets, found.column(0).to_pylist(), strict=True)]
    return result


rows_of_fragments = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=40), max_size=6
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(rows_of_fragments)
def test_what_was_put_is_found_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, given: list[list[tuple[int, int]]]
) -> None:
    store = Store(str(tmp_path_factory.mktemp("s")))
    for rows in given:
        put_fragment(store, "c", "rows", table(rows), IDS, 1)
    wanted = sorted({r for rows in given for r in rows})
    assert read_all(store) == [(u, o, f"{u}-{o}") for u, o in wanted]


overlapping_ranges = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=4), max_size=6
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(overlapping_ranges, st.integers(1, 20))
def test_overlaps_are_decided_by_name_whoever_reads(
    tmp_path_factory: pytest.TempPathFactory, given: list[list[tuple[int, int]]], step: int
) -> None:
    store = Store(str(tmp_path_factory.mktemp("s")))
    first_by_name: dict[int, tuple[str, str]] = {}
    for number, ranges in enumerate(given):
        offsets = {o for start, count in ranges for o in range(start, min(start + count, 60))}
        before = set(store.names("c"))
        put_fragment(store, "c", "rows", table([(0, o) for o in offsets], f" {number}"), IDS, 1)
        [name] = set(store.names("c")) - before
        for o in offsets:
            answer = (name, f"0-{o} {number}")
            first_by_name[o] = min(first_by_name.get(o, answer), answer)
    wanted = [(0, o, answer) for o, (_, answer) in sorted(first_by_name.items())]
    assert read_all(store, step) == wanted


def test_memory_holds_only_the_fragments_of_the_rows_in_hand(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for start in range(0, 50, 10):
        put_fragment(store, "c", "rows", table([(0, start + i) for i in range(10)]), IDS, 1)
    r = reader(store)
    for start in range(0, 50, 5):
        r.window(0, start, start + 5)
        assert len(r._open) <= 1
    assert not r._open


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_damaged_fragment_is_noticed_and_named(tmp_path: Path, damage: str) -> None:
    store = Store(str(tmp_path))
    put_fragment(store, "c", "rows", table([(0, i) for i in range(100)]), IDS, 1)
    [name] = store.names("c")
    path = tmp_path / "c" / name
    r = reader(store)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[damage])
    with pytest.raises(CorruptFileError, match=name) as e:
        r.window(0, 0, 100)
    assert e.value.name == f"c/{name}"


def plant(store: Store, content: bytes, where: str = f"{IDS[0]}-0", count: int = 3) -> str:
    """A file that anybody with access to the folder may write: its name is as it should be."""
    name = f"rows-{where}-{count}-e000001-{content_hash(content)}.arrow"
    store.put(f"c/{name}", content)
    return name


def planted(ranges: Any, rows: int = 3) -> bytes:
    return arrow_files.encode(pa.table({"answer": ["x"] * rows}, metadata={"ranges": json.dumps(ranges)}))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"RLT1", planted([[IDS[0], 0, 3]])[:-9], planted([[IDS[0], 0, 3]], rows=2),
        planted([[IDS[0], 5, 8]]), planted([[IDS[1], 0, 3]]), planted([]),
    ],
)  # fmt: skip
def test_fragment_that_holds_other_rows_than_its_name_says_is_damaged(tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path))
    name = plant(store, content)
    with pytest.raises(CorruptFileError, match=name):
        reader(store).window(0, 0, 3)


@pytest.mark.parametrize(
    ("ranges", "count"),
    [
        ([[IDS[0], -1, 2]], 3), ([[IDS[0], 0, 3]], 4), ([[IDS[0], 3, 0]], 3), ([[IDS[0], 0, 1e300]], 3),
        ([[7, 0, 3]], 3), ([[IDS[0], 0, 1 << 40]], 1 << 40), ([[IDS[0], 0]], 3), ({"a": 1}, 3),
        ([[IDS[0], False, True]], 1), ([], 0),
    ],
)  # fmt: skip
def test_ranges_that_no_writer_puts_are_damage(tmp_path: Path, ranges: Any, count: int) -> None:
    store = Store(str(tmp_path))
    name = plant(store, planted(ranges), "mixed", count)
    with pytest.raises(CorruptFileError, match=name):
        fragment_ranges(store, f"c/{name}", UNITS)


def packed(ids: str, *numbers: int, units: int = 1) -> bytes:
    return struct.pack(f"<I8s{len(numbers)}i", units, bytes.fromhex(ids), *numbers)


@pytest.mark.parametrize(
    ("ranges", "count"),
    [
        (b"", 3), (b"\x01\0\0", 3), (packed(IDS[0]), 3), (packed(IDS[0], 1, 0, 3)[:-1], 3),
        (packed(IDS[0], 1, -1, 2), 3), (packed(IDS[0], 1, 0, 3), 4), (packed(IDS[0], 1, 3, 0), 3),
        (packed(IDS[0], 2, 0, 3), 3), (packed(IDS[0], 0, 0, 3), 3), (packed(IDS[0], -1), 0),
        (packed(IDS[0], 1, 0, 3, 5), 3), (packed(IDS[0], 1, 0, 3, units=2**32 - 1), 3),
        (packed(IDS[0], 1, -(2**31), 2**31 - 1), 2**32 - 1), (packed(IDS[0], 2**31 - 1, 0, 3), 3),
        (packed(IDS[0], 2, 0, 1, 2, 0), 3), (packed(IDS[0], 0), 0),
    ],
)  # fmt: skip
def test_packed_ranges_that_no_writer_puts_are_damage(tmp_path: Path, ranges: bytes, count: int) -> None:
    store = Store(str(tmp_path))
    content = arrow_files.encode(pa.table({"answer": ["x"] * 3}, metadata={"row_ranges": ranges}))
    name = plant(store, content, "mixed", count)
    with pytest.raises(CorruptFileError, match=name):
        fragment_ranges(store, f"c/{name}", UNITS)


def test_fragments_of_earlier_versions_are_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    ranges = [[IDS[0], 5, 7], ["of another plan!", 0, 2], [IDS[2], 3, 4]]
    texts = pa.array(["0-5", "0-6", "-", "-", "2-3"])
    content = arrow_files.encode(pa.table({"answer": texts}, metadata={"ranges": json.dumps(ranges)}))
    name = plant(store, content, "mixed", 5)
    columns = fragment_ranges(store, f"c/{name}", UNITS)
    assert [c.tolist() for c in vars(columns).values()] == [[0, -1, 2], [5, 0, 3], [7, 2, 4]]
    assert read_all(store) == [(0, 5, "0-5"), (0, 6, "0-6"), (2, 3, "2-3")]


def test_scattered_rows_take_a_few_bytes_each(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    rows = [(unit, offset) for unit in (0, 3) for offset in range(0, 20_000, 2)]
    put_fragment(store, "c", "rows", table(rows), IDS, 1)
    [name] = store.names("c")
    assert arrow_files.schema_end(store.read_start(f"c/{name}", 64)) < 9 * len(rows)
    columns = fragment_ranges(store, f"c/{name}", UNITS)
    assert list(zip(columns.units.tolist(), columns.starts.tolist(), strict=True)) == rows
    assert (columns.stops - columns.starts == 1).all()


def test_each_death_of_an_engine_makes_a_fragment_of_row_ids(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    ids = table([(1, 4), (0, 2), (1, 5), (0, 0)]).drop_columns(["answer"])
    for _ in range(2):
        put_fragment(store, "c", "died", ids, IDS, 1)
    put_fragment(store, "c", "died", ids.slice(0, 1), IDS, 1)
    result = ledger(store)
    assert (len(result.rows), len(result.failed), len(result.died)) == (0, 0, 3)
    columns = zip(*(column.tolist() for column in vars(result.died.ranges).values()), strict=True)
    assert sorted(columns) == [(0, 0, 1)] * 2 + [(0, 2, 3)] * 2 + [(1, 4, 5), (1, 4, 6), (1, 4, 6)]


def test_fragment_over_the_limit_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    name = plant(store, planted([[IDS[0], 0, 3]]))
    monkeypatch.setattr(arrow_files, "MAX_BYTES", 10)
    monkeypatch.setattr(arrow_files.decode, "__defaults__", (10,))
    with pytest.raises(
        CorruptFileError, match=rf"{name} is damaged: its rows have \d+ bytes, and may have 10"
    ):
        reader(store).window(0, 0, 3)


def test_rows_that_are_too_many_for_a_fragment_make_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "MAX_BYTES", 2000)
    monkeypatch.setattr(fragments_module, "_MAX_ROWS", 12)
    store = Store(str(tmp_path))
    put_fragment(store, "c", "rows", table([(0, i) for i in range(50)]), IDS, 1)
    put_fragment(store, "c", "rows", table([(1, i) for i in range(6)], "x" * 300), IDS, 1)
    assert len(store.names("c")) == 6 + 2
    assert [o for _, o, _ in read_all(store)] == [*range(50), *range(6)]
    with pytest.raises(SliceError, match=f"the answer to row 8 of unit {IDS[2]} cannot be stored"):
        put_fragment(store, "c", "rows", table([(2, 7)], "x" * 2000), IDS, 1)


@pytest.mark.parametrize("content", [b"", b"ARROW", json.dumps([]).encode()])
def test_damaged_fragment_with_holes_is_noticed(tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path))
    store.put("c/rows-mixed-3-e000001-0123456789abcdef.arrow", content)
    with pytest.raises(CorruptFileError, match="rows-mixed-3"):
        reader(store)


def test_corrupt_file_error_survives_a_pickle() -> None:
    import pickle

    error = CorruptFileError(Store("/s"), "c/x", "bad")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.name, copy.kind) == (str(error), "c/x", "transient")


def test_writer_puts_by_rows_and_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments_module, "FRAGMENT_ROWS", 20)
    monkeypatch.setattr(fragments_module, "FLUSH_SECONDS", 3600.0)
    store = Store(str(tmp_path))
    writer = FragmentWriter(str(tmp_path), "c", IDS, 3)
    for start in range(0, 20, 10):
        writer.add("rows", table([(1, start + i) for i in range(10)]))
    assert [n.split("-")[1:4] for n in store.names("c")] == [[IDS[1], "0", "20"]]
    writer.close()
    monkeypatch.setattr(fragments_module, "FLUSH_SECONDS", 0.2)
    writer = FragmentWriter(str(tmp_path), "c", IDS, 3)
    writer.add("rows", table([(1, 20)]))
    for _ in range(6000):
        if len(store.names("c")) == 2:
            break
        threading.Event().wait(0.05)
    assert len(store.names("c")) == 2
    writer.close()


def test_many_threads_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments_module, "FRAGMENT_ROWS", 16)
    writer = FragmentWriter(str(tmp_path), "c", IDS, 1)
    wanted = [(u, o) for u in range(4) for o in range(50)]
    random.Random(1).shuffle(wanted)

    def work(part: int) -> None:
        for row in wanted[part::4]:
            writer.add("rows", table([row]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    writer.close()
    assert [r[:2] for r in read_all(Store(str(tmp_path)))] == sorted(wanted)


def test_rows_that_cannot_be_put_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments_module, "FRAGMENT_ROWS", 5)
    writer = FragmentWriter(str(tmp_path), "c", IDS, 1)
    (tmp_path / "c").write_text("a file where the folder should be")
    with pytest.raises(SliceError, match="cannot write"):
        writer.add("rows", table([(0, i) for i in range(5)]))
    with pytest.raises(SliceError, match="cannot write"):
        writer.add("rows", table([(0, 9)]))
    (tmp_path / "c").unlink()
    writer.flush()
    writer.add("rows", table([(0, 9)]))
    writer.close()
    assert [o for _, o, _ in read_all(Store(str(tmp_path)))] == [0, 1, 2, 3, 4, 9]


def test_types_of_postprocess_columns_are_united(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for i, value in enumerate([1, None, 2.5]):
        rows = table([(0, i)]).append_column("n", pa.array([value]))
        put_fragment(store, "c", "rows", rows, IDS, 1)
    fields = fragment_fields(store, "c", ledger(store).rows)
    assert [(f.name, f.type) for f in fields] == [("answer", pa.string()), ("n", pa.float64())]
    offsets, answers = reader(store, fields).window(0, 0, 3)
    assert answers.column("n").to_pylist() == [1.0, None, 2.5]
    assert np.array_equal(offsets, [0, 1, 2])
    put_fragment(store, "c", "rows", table([(0, 3)]).append_column("n", pa.array(["x"])), IDS, 1)
    with pytest.raises(SliceError, match="different types"):
        fragment_fields(store, "c", ledger(store).rows)


def test_vectors_of_two_models_are_not_published_together(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for i, size in enumerate([3, 4]):
        vector = pa.array([[0.5] * size], pa.list_(pa.float32(), size))
        put_fragment(store, "c", "rows", table([(0, i)]).append_column("v", vector), IDS, 1)
    with pytest.raises(SliceError, match=r"of different types for one column 'v': .*\[3\] and .*\[4\]"):
        fragment_fields(store, "c", ledger(store).rows)
