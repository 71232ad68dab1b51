"""Identical requests run once, by real coordinators that die and threads that wait for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from tests.support.paths import ROOT

_PROGRAM = """
import json, threading
import pyarrow as pa
import ray
from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.request_keys import Shard
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray
from tests.support.dedup_block import answer_block

connect_to_ray()
actor = ray.remote(coordinator.DedupCoordinator).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
# Two blocks of two feeders: all of the second's requests repeat the first's, 200 of them within it.
BLOCKS = [[i // 2 for i in range(200)], [i % 100 for i in range(300)]]

def request(name):
    params = {"temperature": 1.0} if name == 99 else {"temperature": 0}
    return json.dumps({"messages": [name], "sampling_params": params})

def answer_all(kill):
    coordinators = [actor.remote(None, Shard(i, 2)) for i in range(2)]
    claimed, go_on = threading.Event(), threading.Event()
    answered, inferred = [{}, {}], [[], []]

    def run(block):
        client, names = DedupClient.of_actors(coordinators, always=False), BLOCKS[block]

        def infer(rows, keys):
            claimed.set()
            assert go_on.wait(60)
            assert [key is None for key in keys] == [names[row] == 99 for row in rows]
            postponed = [row for row in rows if names[row] == 7]
            done = [(row, key) for row, key in zip(rows, keys) if row not in postponed]
            inferred[block] += [names[row] for row, _ in done]
            answered[block].update({row: f"is {names[row]}" for row, _ in done})
            keyed = [(row, key) for row, key in done if key is not None]
            columns = {n: pa.nulls(len(keyed)) for n in coordinator.ADDED_COLUMNS}
            columns["text"] = [answered[block][row] for row, _ in keyed]
            client.add_answers([key for _, key in keyed], pa.table(columns))
            return postponed

        def copy(rows, answers):
            answered[block].update(zip(rows, answers.column("text").to_pylist(), strict=True))

        answer_block(client, [request(n) for n in names], infer, copy)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)]
    threads[0].start()
    assert claimed.wait(60)
    if kill:
        ray.kill(coordinators[0], no_restart=False)
    go_on.set()
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    print("RESULT", json.dumps([BLOCKS, answered, inferred]))

answer_all(kill=False)
answer_all(kill=True)
"""


def test_identical_rows_of_all_shards_are_inferred_once_and_again_where_a_shard_died(
    ray_head: LocalHead,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | ray_head.environment() | {"RAY_ADDRESS": ray_head.gcs_address},
        cwd=ROOT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    once = [n for n in range(99) if n != 7]
    again: list[list[int]] = []
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            blocks, answered, inferred = json.loads(line.removeprefix("RESULT "))
            for names, answers in zip(blocks, answered, strict=True):
                # All but the name that is postponed.
                assert answers == {str(i): f"is {name}" for i, name in enumerate(names) if name != 7}
            again.append(sorted(inferred[0] + inferred[1]))
    all_alive, one_died = again
    assert all_alive == [*once, *[99] * 5]  # 99 is not deterministic
    assert set(once) < set(one_died)
    assert len(once) + 5 <= len(one_died) < 2 * len(once)  # the other shard had its answers
