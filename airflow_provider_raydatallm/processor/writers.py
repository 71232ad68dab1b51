"""One fragment writer a node, as Ray actors: finished rows leave the pipeline for the writer of their own
node.

A writer that dies is started again by Ray and the rows that it had not put yet are found missing, and
answered again, when the slice is reconciled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.processor.fragments import FragmentWriter
from airflow_provider_raydatallm.processor.ledger import FragmentKind

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Threads of a writer: callers that wait for one put do not keep the others from handing over their rows.
_THREADS = 8


class _Writer(FragmentWriter):
    """Counts the failed rows that it takes: those that fail before the engine are seen nowhere else."""

    failed_rows = 0

    def add(self, kind: FragmentKind, table: pa.Table) -> None:
        super().add(kind, table)
        if kind == "failed":
            self.failed_rows += table.num_rows

    def failed(self) -> int:
        return self.failed_rows


class Writers:
    """Handles of the writers, for tasks and for the driver that started them."""

    def __init__(self, by_node: dict[str, ActorHandle[Any]], unit_ids: Any) -> None:
        """:param unit_ids: the object that the writers were made with. Ray cannot start one again without it,
        and keeps it no longer than somebody refers to it (ray #53727)."""
        self._by_node = by_node
        self._unit_ids = unit_ids

    @classmethod
    def start(cls, url: str, folder: str, unit_ids: Sequence[str], epoch: int) -> Writers:
        """A writer on each node that is there now; nodes that come later use those of the others."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        writer = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=_THREADS)(
            _Writer
        )
        ids = ray.put(list(unit_ids))
        return cls(
            {
                node["NodeID"]: writer.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
                ).remote(url, folder, ids, epoch)
                for node in ray.nodes()
                if node["Alive"]
            },
            ids,
        )

    def add(self, kind: FragmentKind, table: pa.Table) -> None:
        """Hand over rows, from a task."""
        import ray

        if table.num_rows:
            node = ray.get_runtime_context().get_node_id()
            writer = self._by_node.get(node) or next(iter(self._by_node.values()))
            ray.get(writer.add.remote(kind, table))

    def flush(self, timeout: float | None = None) -> None:
        """Have all rows put that were handed over."""
        import ray

        ray.get([w.flush.remote() for w in self._by_node.values()], timeout=timeout)

    def failed(self) -> int:
        """Rows that failed in this run so far."""
        import ray

        return int(sum(ray.get([w.failed.remote() for w in self._by_node.values()])))

    def stop(self) -> None:
        import ray

        for writer in self._by_node.values():
            ray.kill(writer)
