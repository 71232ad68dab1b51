"""Ray Data LLM as its guides have it, with Ray Data's own checkpointing, to compare `resume_cost` with.

`python -m benchmarks.plain_llm SPEC` reads, answers and writes Parquet in the Ray cluster that it can
reach. Checkpointing needs a column of unique ids, `id` here.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.engines.vllm.engine_base import CPU_ENV
from benchmarks.gpu.compare import CPU_ENGINE
from benchmarks.paced import Departures

#: Of the reference workload, for 10,000 rows. 0 leaves the blocks as they are read.
BLOCKS = int(os.environ.get("BENCH_RESUME_BLOCKS", 128))


def main() -> None:
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.data.checkpoint import CheckpointConfig

    job = SliceJob.model_validate_json(Path(sys.argv[1]).read_text())
    ray.init(logging_level="warning")
    DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=f"{job.output_path}/checkpoint", delete_checkpoint_on_success=False
    )
    rows = ray.data.read_parquet(job.input_path)
    rows = rows.repartition(BLOCKS) if BLOCKS else rows
    if job.engine.endswith("Paced"):
        answers = rows.map_batches(
            _Stub,
            fn_constructor_args=[job.output_path, job.engine_kwargs["seconds_per_row"]],
            batch_size=job.batch_size,
            compute=ActorPoolStrategy(size=1),
        )
    else:
        departures = Departures(job.output_path)
        answers = _processor(job)(rows).map_batches(
            departures.__call__, batch_size=None, batch_format="pyarrow"
        )
    answers.write_parquet(f"{job.output_path}/table")


def _processor(job: SliceJob) -> Any:
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    config = vLLMEngineProcessorConfig(
        model_source=job.model_source,
        engine_kwargs={**CPU_ENGINE, **job.engine_kwargs},
        concurrency=1,
        batch_size=job.batch_size,
        max_concurrent_batches=job.max_concurrent_batches,
        tokenize_stage=False,
        detokenize_stage=False,
        placement_group_config={"bundles": [{"CPU": 1}]},
        runtime_env={"env_vars": CPU_ENV},
    )
    question = {"structured_outputs": {"choice": list(job.choices or ())}, **job.sampling_params}
    return build_processor(
        config,
        preprocess=lambda row: {
            "id": row["id"],
            "messages": [
                {"role": "system", "content": job.system_prompt},
                {"role": "user", "content": (job.prompt or "").replace("{name}", row["name"])},
            ],
            "sampling_params": question,
        },
        postprocess=lambda row: {"id": row["id"], "answer": row["generated_text"]},
    )


class _Stub:
    def __init__(self, output_path: str, seconds_per_row: float) -> None:
        self._departures = Departures(output_path)
        self._seconds_per_row = seconds_per_row

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self._seconds_per_row * len(batch["id"]))
        self._departures.note(len(batch["id"]))
        return {"id": batch["id"], "answer": batch["name"]}


if __name__ == "__main__":
    main()
