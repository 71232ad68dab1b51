"""vLLM's processes on CPUs, which sleep for a moment where they would poll each other without a pause.

The engine's process and its worker's wait for each other by `sched_yield`, again and again. Beside a GPU that
is a spare core; here it is one of those that compute. Some Linux kernels even let a task that always yields
keep others from running: on two cores, importing Ray beside a busy engine took 109 s, and takes 4 so. vLLM
has no option for it yet: https://github.com/vllm-project/vllm/pull/52848
"""

from __future__ import annotations

import time

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

#: Against milliseconds that a step of the smallest model takes.
_SECONDS = 0.0002


def _pause() -> None:
    time.sleep(_SECONDS)


shm_broadcast.sched_yield = _pause


class SleepingExecutor(MultiprocExecutor):  # type: ignore[misc]
    """vLLM's own; by its module it brings the pause along."""

    def _init_executor(self) -> None:
        # The worker's process gets the configuration, too, and imports this module by the class in it.
        self.vllm_config.parallel_config.distributed_executor_backend = type(self)
        super()._init_executor()
