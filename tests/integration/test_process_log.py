"""The last words of a dead process are found, also where Ray moved its log."""

from __future__ import annotations

import os
import subprocess
import sys

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
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
        print("it began", flush=True)
        print("it broke", file=sys.stderr, flush=True)
        os._exit(1)

def hear(place):
    speaker = Speaker.remote()
    process = ray.get(speaker.process.remote())
    try:
        ray.get(speaker.die.remote())
    except ray.exceptions.RayActorError:
        pass
    logs, end = sys.argv[1], f"-{process['pid']}.out"
    [log] = [n for n in os.listdir(logs) if n.startswith("worker-") and n.endswith(end)]
    kind, worker, job, pid = log.split("-")
    names = {"with its job": f"{kind}-{worker}-{ray.get_runtime_context().get_job_id()}-{pid}",
             "without a job": f"{kind}-{worker}-ffffffff-{pid}"}
    if place in names:
        for name in (log, log.removesuffix("out") + "err"):
            os.rename(f"{logs}/{name}", f"{logs}/old/{names[place]}"[:-3] + name[-3:])
    for asked in (process, {"actor_id": speaker._actor_id.hex()}):
        print("HEARD", place, process_log(**asked).splitlines())

for place in sys.argv[2:]:
    hear(place)
"""


def test_last_words_of_a_dead_process_are_found(ray_head: LocalHead) -> None:
    places = ["in place", "with its job", "without a job"]
    logs = ray_head.folder / "tmp" / "session_latest" / "logs"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(logs), *places],
        env=os.environ | ray_head.environment() | {"RAY_ADDRESS": ray_head.gcs_address},
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heard = [line for line in done.stdout.splitlines() if line.startswith("HEARD")]
    assert heard == [f"HEARD {place} ['it began', 'it broke']" for place in places for _ in range(2)]
