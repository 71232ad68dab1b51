"""vLLM's multiprocess executor for CPUs, which starts faster, and sleeps where it would poll without a pause.

The engine's and the worker's process wait for each other by `sched_yield` in a loop. With a GPU that uses
a spare core; on CPUs it takes one from the computation. On some Linux kernels such a loop even starves other
processes: on two cores, importing Ray beside a busy engine took 109 s, and takes 4 s with this executor. vLLM
has no option for it yet: https://github.com/vllm-project/vllm/pull/52848

On CPUs vLLM spawns the worker's process, which imports torch and vLLM once more: 7 of 22 s until an engine
is ready. A fork has them already. It has OpenMP's settings already, too: only a spawned process can bind its
threads to cores of its own.
"""

from __future__ import annotations

import os
import time

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

#: A step of the smallest model takes milliseconds.
_SLEEP_S = 0.0002


def _sleep() -> None:
    time.sleep(_SLEEP_S)


shm_broadcast.sched_yield = _sleep


class SleepingExecutor(MultiprocExecutor):  # type: ignore[misc]
    """vLLM's own executor; importing its module installs the pause."""

    def _init_executor(self) -> None:
        # The worker's process unpickles the configuration, and so imports this module.
        self.vllm_config.parallel_config.distributed_executor_backend = type(self)
        if os.environ.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        super()._init_executor()
