"""Identical requests run once, by real coordinators that die and threads that wait for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from airflow_provider_raydatallm.local_ray.head import LocalHead
from tests.support.paths import ROOT

_PROGRAM = """
import json, threading
import pyarrow as pa
import ray
from airflow_provider_raydatallm.processor.engines.dedup import coordinator
from airflow_provider_raydatallm.processor.engines.dedup.client import DedupClient
from airflow_provider_raydatallm.processor.engines.dedup.keys import Shard
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray

connect_to_ray()
actor = ray.remote(coordinator.DedupCoordinator).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
coordinators = [actor.remote(None, Shard(i, 2)) for i in range(2)]
clients = [DedupClient(coordinators, always=False) for _ in range(2)]
# Two blocks of two feeders: all of the second's requests repeat the first's, 200 of them within it.
blocks = [[i // 2 for i in range(200)], [i % 100 for i in range(300)]]
answered = [{}, {}]
inferred = [[], []]
claimed, killed = threading.Event(), threading.Event()

def request(name):
    params = {"temperature": 1.0} if name == 99 else {"temperature": 0}
    return json.dumps({"messages": [name], "sampling_params": params})

def run(block):
    names = blocks[block]

    def infer(rows, keys):
        claimed.set()
        assert killed.wait(60)
        assert [key is None for key in keys] == [names[row] == 99 for row in rows]
        postponed = [row for row in rows if names[row] == 7]
        done = [(row, key) for row, key in zip(rows, keys) if row not in postponed]
        inferred[block] += [names[row] for row, _ in done]
        answered[block].update({row: f"is {names[row]}" for row, _ in done})
        keyed = [(row, key) for row, key in done if key is not None]
        columns = {n: pa.nulls(len(keyed)) for n in coordinator.ADDED_COLUMNS}
        columns["text"] = [answered[block][row] for row, _ in keyed]
        clients[block].add_answers([key for _, key in keyed], pa.table(columns))
        return postponed

    def copy(rows, answers):
        answered[block].update(zip(rows, answers.column("text").to_pylist(), strict=True))

    clients[block].run([request(n) for n in names], infer, copy)

threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)]
threads[0].start()
assert claimed.wait(60)
if KILL:
    ray.kill(coordinators[0], no_restart=False)
killed.set()
threads[1].start()
for thread in threads:
    thread.join(60)
print("RESULT", json.dumps([blocks, answered, inferred, [t.is_alive() for t in threads]]))
"""


def run_blocks(head: LocalHead, *, kill: bool) -> list[list[int]]:
    """Returns what each block inferred, once all rows have the right answers."""
    done = subprocess.run(
        [sys.executable, "-c", f"KILL = {kill}\n{_PROGRAM}"],
        env=os.environ | head.environment() | {"RAY_ADDRESS": head.gcs_address},
        cwd=ROOT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    blocks, answered, inferred, hangs = json.loads(line.removeprefix("RESULT "))
    assert hangs == [False, False]
    for names, answers in zip(blocks, answered, strict=True):
        assert answers == {
            str(i): f"is {name}" for i, name in enumerate(names) if name != 7
        }  # 7 is postponed
    return inferred


def test_identical_rows_of_all_shards_are_inferred_once_and_again_where_a_shard_died(
    ray_head: LocalHead,
) -> None:
    once = [*(n for n in range(99) if n != 7)]
    first, second = run_blocks(ray_head, kill=False)
    assert sorted(first + second) == [*once, *[99] * 5]  # 99 is not deterministic
    first, second = run_blocks(ray_head, kill=True)
    again = sorted(first + second)
    assert set(once) < set(again)
    assert len(once) + 5 <= len(again) <= 2 * len(once) + 5
