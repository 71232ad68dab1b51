"""Nodes that come and leave while a slice is answered: added and reclaimed ones, and those that it needs no
more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead, head_status
from tests.chaos.nodes import Node, taken
from tests.support.paths import ROOT
from tests.support.slices import Ask
from tests.support.waiting import in_thread, wait_for

ROWS, AT_ONCE = 160, 10
#: Of `stub_worker`: tokens of a row that waits until a file is there.
LONG = 999


@pytest.fixture
def node(ray_head: LocalHead) -> Iterator[Node]:
    """With room for one of two workers, and for nothing else."""
    node = Node(ray_head, 4)
    try:
        yield node
    finally:
        node.kill()


def begun(folder: Path) -> Counter[str]:
    """Rows that `NotingWorkers` have begun, by node."""
    path = folder / "out.begun"
    return Counter(path.read_text().split() if path.exists() else ())


def test_engine_on_a_node_that_is_added_joins_a_running_slice(
    ask: Ask, ray_head: LocalHead, node: Node, tiny_model: Path, tmp_path: Path
) -> None:
    """As an autoscaler adds one, for a worker that is to help in finishing in time."""
    assert node.id
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(ROWS)]}), tmp_path / "in.parquet")
    results: list[Any] = []
    with taken(ray_head, 4):  # all that a second worker could have
        thread = in_thread(
            ask, results, input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model),
            code_paths=[str(ROOT / "tests" / "support" / "stub_worker.py")],
            engine="stub_worker:NotingWorkers", sampling_params={"max_tokens": 100}, poll_interval=1.0,
            engine__workers=(1, 2), engine__kwargs={"tensor_parallel_size": 4}, engine__batch_size=AT_ONCE,
            engine__max_concurrent_batches=1, limits__finish_by="1s",
        )  # fmt: skip
        wait_for(lambda: sum(begun(tmp_path).values()) >= AT_ONCE)
        added = Node(ray_head, 4)
        try:
            assert added.id not in begun(tmp_path)
            thread.join(240)
        finally:
            added.kill()
    [result] = results
    assert result["counts"]["succeeded"] == ROWS
    assert begun(tmp_path)[added.id] > AT_ONCE
    assert sum(begun(tmp_path).values()) == ROWS
    assert result["balance"]["workers"] == 2


@pytest.mark.parametrize("seconds", [40, pytest.param(0, marks=pytest.mark.long)], ids=["notice", "none"])
def test_rows_of_a_node_that_is_reclaimed_are_asked_again_only_without_notice(
    ask: Ask, node: Node, tiny_model: Path, tmp_path: Path, seconds: int
) -> None:
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(ROWS)]}), tmp_path / "in.parquet")
    assert node.id
    results: list[Any] = []
    thread = in_thread(
        ask, results, input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model),
        code_paths=[str(ROOT / "tests" / "support" / "stub_worker.py")], engine="stub_worker:NotingWorkers",
        sampling_params={"max_tokens": 300}, poll_interval=1.0, engine__workers=2,
        engine__kwargs={"tensor_parallel_size": 4}, engine__batch_size=AT_ONCE,
        engine__max_concurrent_batches=1,
    )  # fmt: skip

    wait_for(lambda: begun(tmp_path)[node.id] > AT_ONCE)
    if seconds:
        node.give_notice(seconds)
        before = begun(tmp_path)[node.id]
        wait_for(lambda: sum(begun(tmp_path).values()) > ROWS - 2 * AT_ONCE)
        # What it had, and what came until feeders asked who leaves: three a second, for five seconds.
        assert begun(tmp_path)[node.id] - before <= 5 * AT_ONCE
    node.kill()
    thread.join(240)
    [result] = results
    assert result["counts"]["succeeded"] == ROWS
    asked_again = sum(begun(tmp_path).values()) - ROWS
    assert asked_again == 0 if seconds else 0 < asked_again <= 2 * AT_ONCE


def test_node_is_idle_as_soon_as_the_last_rows_are_on_others(
    ask: Ask, ray_head: LocalHead, tiny_model: Path, tmp_path: Path
) -> None:
    """Worker, feeder and writer have left it, so that an autoscaler takes it before the slice is done."""
    tokens = [20] * 60 + [LONG]
    pq.write_table(
        pa.table({"name": [f"n{i}" for i in range(len(tokens))], "tokens": tokens}), tmp_path / "in.parquet"
    )
    nodes: list[Node] = []
    results: list[Any] = []
    thread: Thread | None = None
    try:
        for _ in range(2):
            nodes.append(Node(ray_head, 5))
            assert nodes[-1].id
        thread = in_thread(
            ask, results, input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model),
            code_paths=[str(ROOT / "tests" / "support" / "stub_worker.py")],
            engine="stub_worker:HoldingWorkers", sampling_params={"max_tokens": "{tokens}"},
            poll_interval=1.0, engine__workers=3, engine__kwargs={"tensor_parallel_size": 4},
            engine__batch_size=AT_ONCE,
        )  # fmt: skip
        answered = tmp_path / "out.answered"
        wait_for(
            lambda: results or (answered.exists() and len(answered.read_text().split()) == len(tokens) - 1)
        )
        assert not any(node.is_idle() for node in nodes)
        wait_for(lambda: results or any(node.is_idle() for node in nodes))
        assert not results
    finally:
        (tmp_path / "out.gate").touch()
        if thread is not None:
            thread.join(240)
        for node in nodes:
            node.kill()
    [result] = results
    assert result["counts"]["succeeded"] == len(tokens)
    assert head_status() == ray_head  # although dead nodes have its address
