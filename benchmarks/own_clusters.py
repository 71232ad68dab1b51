"""What a cluster of one's own adds to a slice, over a standing one: Kubernetes and KubeRay are those of
tests, which make a cluster at once, and the Ray behind it is a stub.

Seconds from a task's first step to its submitted job, and from its result to the end of the cluster, as
medians of runs that take turns; and the calls of the Kubernetes API for many slices at once.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from benchmarks.table import Figure, say, show

TURNS, SLICES, AT_ONCE = 5, 200, 16


def run() -> bool:
    from tests.support.fake_cluster import fake_cluster
    from tests.support.kube.operator import RayOperator
    from tests.support.kube.server import kube_server
    from tests.support.kube.tasks import CONNECTION, World, tracker_of

    os.environ["NO_PROXY"] = "127.0.0.1"
    with (
        tempfile.TemporaryDirectory() as folder,
        kube_server() as kube,
        RayOperator(kube) as operator,
        fake_cluster() as standing,
    ):
        standing.status = None
        of_kubernetes = {"conn_type": "kubernetes", "extra": {"kube_config": kube.kubeconfig()}}
        os.environ["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = json.dumps(of_kubernetes)
        os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = "ray://kuberay"
        of_standing = {"conn_type": "ray", "host": f"http://127.0.0.1:{standing.server_port}"}
        os.environ["AIRFLOW_CONN_STANDING"] = json.dumps(of_standing)
        world = World(kube, operator, folder)

        def start(key: str, own: bool) -> tuple[float, float]:
            began = time.monotonic()
            tracker = world.tracker(key) if own else tracker_of(key, folder, ray_conn_id="standing")
            world.submit(tracker)
            submitted = time.monotonic()
            tracker.conclude({"outcome": "published"})
            name = tracker.record.cluster.rpartition("/")[2]
            while own and any(item["metadata"]["name"] == name for item in kube.objects("rayclusters")):
                time.sleep(0.01)
            return submitted - began, time.monotonic() - submitted

        turns = [[start(f"{own}-{turn}", own) for own in (False, True)] for turn in range(TURNS)]
        standing_s, own_s, end_s = (
            statistics.median(times[own][part] for times in turns) for own, part in ((0, 0), (1, 0), (1, 1))
        )
        before, began = len(kube.calls), time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda n: start(f"many-{n}", own=True), range(SLICES)))
        calls = Counter(f"{call[0]} {call[1]}" for call in kube.calls[before:])
        said = ", ".join(f"{count:,} {name}" for name, count in calls.most_common())
        say(f"{SLICES} slices, {AT_ONCE} at once, in {time.monotonic() - began:.0f} s: {said}")
        while operator.leftovers():
            time.sleep(0.1)
    each, more_s = sum(calls.values()) / SLICES, own_s - standing_s
    return show(
        [
            Figure("to the submitted job, over a standing cluster", f"{more_s:.2f} s", "< 5 s", more_s < 5),
            Figure("from the task's result to the cluster's end", f"{end_s:.2f} s", "< 5 s", end_s < 5),
            Figure("calls of the Kubernetes API a slice", f"{each:.1f}", "< 20", each < 20),
        ]
    )


if __name__ == "__main__":
    run()
