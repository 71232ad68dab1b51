"""Whether a job still waits for room on the cluster: an entry in its metadata, which Ray shows with the job.

The Airflow side submits jobs as `WAITING` and counts those that are (`task/queue/gate`,
`task/queue/line`); a job says itself that it has had its turn (`processor/ray_runtime/own_phase`).
Another entry tells tasks that start whether some stand in line before them.
"""

from __future__ import annotations

PHASE = "ray_llm_phase"
WAITING = "waiting"
ADMITTED = "admitted"
#: How many tasks stood in the triggerer's line behind the job's own, when that was called.
BEHIND = "ray_llm_behind"
