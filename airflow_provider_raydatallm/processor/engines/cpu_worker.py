"""vLLM's worker for CPUs, with rows that have a seed of their own.

vLLM reads a prompt in several steps where a step has no room for all of it, draws a token after each, and
puts the row's generator back for all but the last. A CPU's cannot be put back so ("CPU Generator does not use
offset"), and the engine dies, with all its rows: https://github.com/vllm-project/vllm/pull/10097
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.worker.cpu_worker import CPUWorker


class SeededCPUWorker(CPUWorker):  # type: ignore[misc]
    def sample_tokens(self, grammar_output: Any) -> Any:
        """Rows whose prompt goes on draw without their generators, which then have nothing to take back."""
        runner = self.model_runner
        generators = runner.input_batch.generators
        goes_on = np.nonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])[0]
        kept = {i: generators.pop(i) for i in goes_on.tolist() if i in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(kept)
