"""Operations of a model, beside those that vLLM counts itself (`enable_mfu_metrics`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.processor.sizing.test_model_work import LLAMA, MIXTURE, work_of


@pytest.mark.parametrize("config", [LLAMA, MIXTURE], ids=["dense", "mixture"])
def test_operations_are_those_that_vllm_counts(tmp_path: Path, config: dict[str, Any]) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

    work = work_of(tmp_path, config)
    assert work is not None
    engine = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, max_model_len=128)
    metrics = ModelMetrics(engine.create_engine_config())
    prompt, cached, answer = 60, 20, 10
    computed = range(cached, prompt + answer - 1)
    context = ExecutionContext()
    for position in computed:
        context.add(1, position, is_prefill=position < prompt - 1)
    vllm = metrics.get_num_flops(context, per_gpu=False)
    # vLLM counts logits for each of these steps, also of the prompt's, which we take one by one here.
    steps_without_a_sample = len(computed) - answer
    vllm -= 2 * work.head * steps_without_a_sample
    assert work.operations(len(computed), answer, sum(computed)) == pytest.approx(vllm, rel=0.02)
