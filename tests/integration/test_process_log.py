"""The last words of a dead process are found, also where Ray moved its log."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_provider_raydatallm.local_ray.head import LocalHead
from tests.support.paths import ROOT

_PROGRAM = """
import os, sys
import ray
from airflow_provider_raydatallm.processor.ray_runtime.driver import connect_to_ray, process_log

connect_to_ray()

@ray.remote(num_cpus=0)
class Speaker:
    def process(self):
        return {"node_id": ray.get_runtime_context().get_node_id(), "pid": os.getpid()}

    def die(self):
        print("it broke", flush=True)
        os._exit(1)

speaker = Speaker.remote()
process = ray.get(speaker.process.remote())
try:
    ray.get(speaker.die.remote())
except ray.exceptions.RayActorError:
    pass
logs = sys.argv[1]
[log] = [n for n in os.listdir(logs) if n.startswith("worker-") and n.endswith(f"-{process['pid']}.out")]
kind, worker, job, pid = log.split("-")
names = {"with its job": f"{kind}-{worker}-{ray.get_runtime_context().get_job_id()}-{pid}",
         "without a job": f"{kind}-{worker}-ffffffff-{pid}"}
if sys.argv[2] != "in place":
    os.rename(f"{logs}/{log}", f"{logs}/old/{names[sys.argv[2]]}")
for asked in (process, {"actor_id": speaker._actor_id.hex()}):
    print("HEARD", process_log(**asked).splitlines()[-1:])
"""


@pytest.mark.parametrize("place", ["in place", "with its job", "without a job"])
def test_last_words_of_a_dead_process_are_found(ray_head: LocalHead, place: str) -> None:
    logs = ray_head.folder / "tmp" / "session_latest" / "logs"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(logs), place],
        env=os.environ | ray_head.environment() | {"RAY_ADDRESS": ray_head.gcs_address},
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heard = [line for line in done.stdout.splitlines() if line.startswith("HEARD")]
    assert heard == ["HEARD ['it broke']"] * 2
