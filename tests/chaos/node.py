"""A node that joins a cluster on this machine: `python -m tests.chaos.node GCS_ADDRESS CPUS`, until it is
killed; prints its id. `ray start` joins none on loopback."""

from __future__ import annotations

import sys
import threading

if __name__ == "__main__":
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    gcs_address, cpus = sys.argv[1:]
    joined = Node(
        RayParams(
            gcs_address=gcs_address, node_ip_address="127.0.0.1", num_cpus=int(cpus), min_worker_port=0,
            max_worker_port=0, dashboard_agent_listen_port=0,
        ),
        head=False, shutdown_at_exit=False, spawn_reaper=False,
    )  # fmt: skip
    print(joined.node_id, flush=True)
    threading.Event().wait()
