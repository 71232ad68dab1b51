"""The same rows by vLLM's offline `LLM.chat`, plain Ray Data LLM, Daft and the processor, on one machine.

    python -m benchmarks.gpu.compare chat vllm ray_data_llm plain tuned --model DIR --work short --rows 20000

Needs ray, vllm and this repository, no Airflow; daft for that mode. Each run prints one JSON line; it is its
own process, except those of `chat`, which share an engine. Rates and the GPU's busy time are measured from
the first request in the engine to the last row out of it. `vllm` and `ray_data_llm`, the processor's engines,
get no sizes except `max_num_seqs`, if given: their sizes are automatic. Without a GPU all run on CPUs.

`--lengths` is for answers of different lengths. With "known", `chat` gets the longest rows first, and `vllm`
is told how long each answer is; with "unknown" neither. Other modes always see a row's `max_tokens`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.arguments import cpu_dtype
from airflow_provider_raydatallm.processor.engines.vllm.engine_base import CPU_ENV
from benchmarks.hidden_lengths import LENGTHS, hide_lengths
from benchmarks.prompts import ASK, ROWS, SAMPLING, rows_of
from tests.support.slice_jobs import spec

MODES = ("chat", "plain", "tuned", "daft", "vllm", "ray_data_llm")
#: Without a GPU: Ray's logical CPUs, and vLLM's arguments.
CPUS = 12
CPU_ENGINE = {"dtype": cpu_dtype(), "enforce_eager": True}


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


class GpuBusy:
    """Samples how busy this process's GPU is, if there is one."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        if has_gpu():
            import pynvml

            pynvml.nvmlInit()
            index = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
            self._nvml, self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._samples.append((time.time(), self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu))
            time.sleep(0.25)

    def mean(self, start: float, stop: float) -> float | None:
        samples = [busy for at, busy in self._samples if start <= at <= stop]
        return round(sum(samples) / len(samples), 1) if samples else None


def chat(args: argparse.Namespace, runs: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """One engine for all runs. A run finds nothing of earlier ones in the prefix cache."""
    from vllm import LLM, SamplingParams

    busy, began = GpuBusy(), time.time()
    llm = LLM(model=args.model, **engine_kwargs(args))
    for work, lengths in runs:
        rows = rows_for(args, work)
        if lengths == "known":
            rows.sort(key=lambda row: -row["answer_tokens"])
        first = time.time()
        params = [SamplingParams(**SAMPLING, max_tokens=r["answer_tokens"]) for r in rows]
        messages: Any = [[{"role": "user", "content": ASK + r["text"]}] for r in rows]
        answers = llm.chat(messages, params, use_tqdm=False)
        last = time.time()
        tokens = sum(len(a.prompt_token_ids or ()) + len(a.outputs[0].token_ids) for a in answers)
        yield figures(rows, began, first, last, tokens, busy.mean(first, last))
        llm.reset_prefix_cache()
        began = time.time()


def plain(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As in Ray's guides, with all defaults."""
    return ray_data(args, rows, {})


def tuned(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tuned by measurements: larger batches, more of them at once, several processes that feed the engine,
    and no stage that repeats the engine's work."""
    processes = 4 if has_gpu() else 1
    options = {
        "batch_size": 128,
        "max_concurrent_batches": 32,
        "chat_template_stage": {"concurrency": (1, processes)},
        "tokenize_stage": {"concurrency": (1, processes)} if has_gpu() else False,
        "detokenize_stage": False,
    }
    return ray_data(args, rows, options)


def ray_data(args: argparse.Namespace, rows: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    busy, began = GpuBusy(), time.time()
    start_ray()
    if not has_gpu():
        options |= {"placement_group_config": {"bundles": [{"CPU": 1}]}, "runtime_env": {"env_vars": CPU_ENV}}
    config = vLLMEngineProcessorConfig(
        model_source=args.model, engine_kwargs=engine_kwargs(args), concurrency=1, **options
    )
    process = build_processor(
        config,
        preprocess=lambda row: {
            "messages": [{"role": "user", "content": ASK + row["text"]}],
            "sampling_params": {**SAMPLING, "max_tokens": row["answer_tokens"]},
        },
        postprocess=lambda row: {
            "batch": str(row["batch_uuid"]), "took": row["time_taken_llm"], "done": time.time(),
            "tokens": row["num_input_tokens"] + row["num_generated_tokens"],
        },
    )  # fmt: skip
    answered = process(ray.data.from_items(rows, override_num_blocks=64))
    table = pa.concat_tables([ray.get(ref) for ref in answered.to_arrow_refs()])
    last = time.time()
    # A batch leaves the engine with its slowest row, so it began that many seconds before.
    batches = table.group_by("batch").aggregate([("done", "max"), ("took", "max")]).to_pylist()
    first = min(b["done_max"] - b["took_max"] for b in batches)
    return figures(rows, began, first, last, sum(table["tokens"].to_pylist()), busy.mean(first, last))


def daft(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Its prompt function takes texts and one set of parameters for all rows: templates are applied before,
    and it cannot run rows of different answer lengths."""
    import daft
    from daft.execution import vllm as execution
    from daft.functions import prompt
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    class TimedExecutor(execution.LocalVLLMExecutor):
        def submit(self, *arguments: Any) -> None:
            times.append(time.time())
            super().submit(*arguments)

    times: list[float] = []
    setattr(execution, "LocalVLLMExecutor", TimedExecutor)  # noqa: B010
    busy, began = GpuBusy(), time.time()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    (max_tokens,) = {r["answer_tokens"] for r in rows}
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": ASK + r["text"]}], tokenize=False, add_generation_prompt=True
        )
        for r in rows
    ]
    frame = daft.from_pydict({"i": [r["i"] for r in rows], "text": texts})
    answer = prompt(
        daft.col("text"),
        provider="vllm-prefix-caching",
        model=args.model,
        engine_args=engine_kwargs(args),
        generate_args={"sampling_params": SamplingParams(**SAMPLING, max_tokens=max_tokens)},
        **({} if has_gpu() else {"gpus_per_actor": 0}),
    )
    answers = frame.with_column("answer", answer).to_pydict()["answer"]
    assert len(answers) == len(rows)
    last = time.time()
    return figures(rows, began, times[0], last, None, busy.mean(times[0], last))


def processor(
    args: argparse.Namespace, rows: list[dict[str, Any]], engine: str, lengths: str
) -> dict[str, Any]:
    sampling: dict[str, Any] = {"max_tokens": "{answer_tokens}"}
    if engine == "vllm" and lengths == "unknown":
        rows, sampling = hide_lengths(rows)
        engine = "benchmarks.hidden_lengths:HiddenLengthsEngine"
    busy, began = GpuBusy(), time.time()
    start_ray()
    fields = {
        "engine": engine, "model_source": args.model, "prompt": ASK + "{text}",
        "sampling_params": SAMPLING | sampling, "engine__kwargs": engine_kwargs(args), **json.loads(args.job),
    }  # fmt: skip
    report, first, last = timed_slice(rows, fields)
    tokens = (report.tokens.input or 0) + (report.tokens.output or 0)
    result = figures(rows, began, first, last, tokens, busy.mean(first, last))
    parts = report.model_dump(mode="json", exclude={"slice_key", "output_path", "version"})
    return {**result, "report": parts}


def timed_slice(rows: list[dict[str, Any]], fields: dict[str, Any]) -> tuple[Any, float, float]:
    """Publishes rows by the processor. Returns the report, and when the first row was in the engine and the
    last one out of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.processor import version_build
    from airflow_provider_raydatallm.processor.slice_run import run_slice

    class TimedMeter(version_build.Meter):  # the report has the difference of these two times only
        def report_sections(self, *arguments: Any) -> dict[str, Any]:
            times.extend([self._first_request, self._last_row])
            return super().report_sections(*arguments)

    times: list[Any] = []
    setattr(version_build, "Meter", TimedMeter)  # noqa: B010
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_pylist(rows), f"{folder}/in.parquet")
        paths = {"input_path": f"{folder}/in.parquet", "output_path": f"{folder}/out"}
        job = spec(slice_key="all", **paths, **fields)
        report = run_slice(job, lambda progress: print(progress, file=sys.stderr, flush=True))
    return report, *times


def rows_for(args: argparse.Namespace, work: str) -> list[dict[str, Any]]:
    return rows_of(work, args.rows or ROWS[work], args.repeating, args.longest, args.grouped)


def start_ray() -> None:
    import ray

    cpus = {} if has_gpu() else {"num_cpus": CPUS}
    ray.init("local", logging_level="ERROR", include_dashboard=False, **cpus)


def engine_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    on_cpu = {} if has_gpu() else CPU_ENGINE
    kwargs = {"max_model_len": args.max_model_len, **on_cpu, **json.loads(args.engine)}
    if args.dummy:
        kwargs["load_format"] = "dummy"
    if args.max_num_seqs:
        kwargs["max_num_seqs"] = args.max_num_seqs
    return kwargs


def figures(
    rows: list[dict[str, Any]], began: float, first: float, last: float, tokens: int | None, gpu: float | None
) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "start_s": round(first - began, 1),
        "run_s": round(last - first, 2),
        "whole_s": round(time.time() - began, 1),
        "rows_per_s": round(len(rows) / (last - first), 1),
        "tokens_per_s": round(tokens / (last - first)) if tokens is not None else None,
        "gpu_busy": gpu,
    }


def run_alone(mode: str, args: argparse.Namespace, work: str, lengths: str) -> dict[str, Any]:
    rows = rows_for(args, work)
    run = {"plain": plain, "tuned": tuned, "daft": daft}.get(mode)
    return run(args, rows) if run else processor(args, rows, mode, lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modes", nargs="+", choices=MODES)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", nargs="+", choices=ROWS, default=["short"])
    parser.add_argument(
        "--lengths", nargs="+", choices=LENGTHS, default=["unknown"],
        help="of answers: whether the engine knows them",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, help="by default what takes a large GPU a minute")
    parser.add_argument("--repeating", action="store_true", help="prompts with common beginnings")
    parser.add_argument("--grouped", action="store_true", help="rows with the same prefix follow one another")
    parser.add_argument("--longest", type=int, default=1500, help="words of a prompt, at most")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--dummy", action="store_true", help="random weights, to measure a model's shape")
    parser.add_argument("--engine", default="{}", help="JSON of more engine arguments, for all modes")
    parser.add_argument("--job", default="{}", help="JSON of more arguments of the spec (engine__workers)")
    args = parser.parse_args()
    runs = list(product(args.work, args.lengths))
    if len(args.modes) > 1:
        rest = sys.argv[1 + len(args.modes) :]
        for mode in args.modes:
            subprocess.run([sys.executable, "-m", "benchmarks.gpu.compare", mode, *rest], check=False)
        return
    [mode] = args.modes
    if mode != "chat" and len(runs) > 1:
        for work, lengths in runs:
            run = ["--work", work, "--lengths", lengths]
            command = [sys.executable, "-m", "benchmarks.gpu.compare", *sys.argv[1:], *run]
            subprocess.run(command, check=False)
        return
    results = chat(args, runs) if mode == "chat" else [run_alone(mode, args, *runs[0])]
    for (work, lengths), result in zip(runs, results, strict=True):
        line = {"mode": mode, "work": work, "lengths": lengths, **result}
        print("RESULT " + json.dumps(line), flush=True)
    os._exit(0)  # engines are slow to end


if __name__ == "__main__":
    main()
