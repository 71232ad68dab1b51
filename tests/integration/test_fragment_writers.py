"""The driver and its fragment writers on real Ray: whatever a writer does, the driver does not wait for it,
and each row is counted once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from tests.support.paths import ROOT

#: Runs as a driver does, in a process of its own.
_START = """
import os, subprocess, sys, time
from pathlib import Path
import psutil, pyarrow as pa, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray.util.state import list_actors
from airflow_provider_raydatallm.processor.inference.fragment_writers import FragmentWriters
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray
from airflow_provider_raydatallm.processor.ray_runtime.interruptible_wait import InterruptibleWait
from airflow_provider_raydatallm.processor.store.ledger import count_from_name

if len(sys.argv) > 2:  # a cluster of its own: a dead node makes the shared head unhealthy
    options = {"include_dashboard": False, "logging_level": "error", "_node_ip_address": "127.0.0.1"}
    ray.init("local", num_cpus=1, _temp_dir=sys.argv[2], **options)
connect_to_ray()
writers = FragmentWriters(sys.argv[1], "fragments", ["0" * 16], 1)
tasks = writers.for_tasks()
here = ray.get_runtime_context().get_node_id()

def add(start, count):
    units, offsets = pa.array([0] * count, pa.int32()), pa.array(range(start, start + count), pa.int64())
    kinds = pa.array(["ValueError"] * count)
    tasks.add(None, pa.table({"__unit": units, "__offset": offsets, "error_type": kinds}), None)

def writer():
    mine = [("job_id", "=", ray.get_runtime_context().get_job_id()), ("class_name", "=", "WriterActor")]
    [found] = [a for a in list_actors(detail=True, filters=mine) if a.node_id == here and a.state == "ALIVE"]
    return psutil.Process(found.pid)

def count(until):
    counted, deadline = 0, time.monotonic() + 120
    while counted < until and time.monotonic() < deadline:
        counted += writers.update().failed
        time.sleep(0.1)
    for _ in range(5):
        counted += writers.update().failed
        time.sleep(0.1)
    return counted

def files():
    return sum(count_from_name(path.name) for path in Path(sys.argv[1]).glob("fragments/*"))
"""

_PAUSED = """
add(0, 2)
print(count(2))
writer().suspend()
writers.update()
began = time.monotonic()
while not writers.describe_silent():
    assert writers.update().failed == 0
    time.sleep(0.1)
print(writers.describe_silent().startswith("no answer from the fragment writer on node"))
writer().resume()
add(2, 3)
print(count(3))
writers.flush(60)
print(files())
writer().suspend()
try:
    writers.flush(0.5)
except TimeoutError:
    print("not flushed")

def end():
    raise KeyError

try:
    with InterruptibleWait(end, 0.5, 60):
        writers.flush()
except KeyError:
    print("interrupted")
writer().resume()
"""

_RESTARTED = """
add(0, 2)
print(count(2))
while files() < 2:
    time.sleep(0.1)
writer().kill()
add(2, 4)
print(count(4))
writers.flush(60)
print(files())
"""

_JOINED = """
gcs_address = ray.get_runtime_context().gcs_address
command = [sys.executable, "-m", "tests.chaos.node", gcs_address, "1"]
node = subprocess.Popen(command, stdout=subprocess.DEVNULL)
try:
    add(0, 1)
    while len(ray.nodes()) < 2 or not all(n["Alive"] for n in ray.nodes()):
        time.sleep(0.2)
    [there] = {n["NodeID"] for n in ray.nodes()} - {here}
    place = NodeAffinitySchedulingStrategy(there, soft=False)
    on_node = lambda function: ray.remote(num_cpus=0)(function).options(scheduling_strategy=place).remote
    print(ray.get(on_node(lambda tasks: tasks._writer())(tasks)) == tasks.by_node[here])
    writers.update()
    print(ray.get(on_node(lambda tasks: tasks._writer())(tasks)) == writers.for_tasks().by_node[there])
    ray.get(on_node(lambda tasks: add(1, 5))(tasks))
    print(count(6))
    writers.flush(60)
    print(files())
finally:
    for process in [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]:
        process.kill()
"""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param(_PAUSED, ["2", "True", "3", "5", "not flushed", "interrupted"], id="paused"),
        pytest.param(_RESTARTED, ["2", "4", "6"], id="restarted"),
    ],
)
def test_rows_of_a_writer_are_counted_and_written_once(
    ray_head: LocalHead, tmp_path: Path, program: str, says: list[str]
) -> None:
    address = {"RAY_ADDRESS": ray_head.gcs_address}
    assert lines_of(program, str(tmp_path), env=os.environ | ray_head.environment() | address) == says


def test_rows_of_a_node_that_joined_later_are_counted_and_written_once(tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix="rw", dir="/tmp")  # Unix sockets need a short path
    try:
        assert lines_of(_JOINED, str(tmp_path), folder) == ["True", "True", "6", "6"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lines_of(program: str, *arguments: str, env: Mapping[str, str] | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _START + program, *arguments],
        env=env, cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith(("\x1b", "("))]
