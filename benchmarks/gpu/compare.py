"""The same rows by vLLM's offline `LLM.chat`, by plain Ray Data LLM, by Daft and by the processor, on one
machine.

    python -m benchmarks.gpu.compare chat vllm ray_data_llm plain tuned --model DIR --work short --rows 20000

Needs ray, vllm and this repository, no Airflow; daft for that mode. Each run is a process of its own, and
prints one JSON line. Rows are measured from the first request in the engine to the last row out of it; how
busy the GPU is, over the same time. `vllm` and `ray_data_llm`, the processor's engines, are given nothing but
`max_num_seqs`, if at all: their sizes are automatic. Without a GPU all run on CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.processor.engines.vllm.arguments import cpu_dtype
from airflow_provider_raydatallm.processor.engines.vllm.engine_base import CPU_ENV

MODES = ("chat", "plain", "tuned", "daft", "vllm", "ray_data_llm")
#: Of `prefix`: how many beginnings the rows share.
PREFIXES = 100
#: On a machine without a GPU: logical CPUs of Ray, and what vLLM needs there.
CPUS = 12
CPU_ENGINE = {"dtype": cpu_dtype(), "enforce_eager": True}
ASK = "You are given a company record. Answer with its industry only. Record: "
#: Answers are as long as they may be: with weights that say nothing (`--dummy`) no answer ends by itself.
SAMPLING = {"temperature": 1.0, "ignore_eos": True}


def rows_of(
    work: str, count: int, repeating: bool, longest: int = 1500, grouped: bool = False
) -> list[dict[str, Any]]:
    """`short`: 40 words in, 16 tokens out. `mixed`: log-normal lengths, 20 to 1,500 words in, 8 to 400
    tokens out. `prefix`: one of 100 beginnings of 400 words (some 500 tokens), then 40 words; 64 tokens out.
    Each prompt is new from its first words on, or from where its beginning ends, unless they are `repeating`:
    most of a prompt is in the engine's cache then.

    :param longest: words of a prompt; with fewer than 1,500 all else is shorter by as much.
    :param grouped: rows with the same beginning come one after another; else in no order.
    """
    words = Path("LICENSE").read_text().split()
    rnd = random.Random(7)
    starts = [
        f"{n} " + " ".join(words[(n * 13 + j) % len(words)] for j in range(longest * 4 // 15)) + " "
        for n in range(PREFIXES)
    ]
    rows = []
    for i in range(count):
        size, answer = min(40, longest // 4), 16
        if work == "mixed":
            size = int(min(longest, max(20, rnd.lognormvariate(5.2, 0.9) * longest / 1500)))
            answer = int(min(400, max(8, rnd.lognormvariate(4.4, 0.8) * longest / 1500)))
        elif work == "prefix":
            answer = 64
        start = rnd.randrange(len(words) - 1)
        text = " ".join(words[(start + j) % len(words)] for j in range(size))
        new = "" if repeating else f"{rnd.randrange(10**9)} "
        shared = rnd.choice(starts) if work == "prefix" else ""
        rows.append({"i": i, "text": shared + new + text, "answer_tokens": answer})
    # All begin with the number of their beginning.
    return sorted(rows, key=lambda row: str(row["text"]).split()[0]) if grouped else rows


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


class GpuBusy:
    """Samples how busy the GPU is that this process has, if there is one."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []
        if has_gpu():
            import pynvml

            pynvml.nvmlInit()
            mine = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
            self._nvml, self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(mine)
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._seen.append((time.time(), self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu))
            time.sleep(0.25)

    def mean(self, start: float, stop: float) -> float | None:
        seen = [busy for at, busy in self._seen if start <= at <= stop]
        return round(sum(seen) / len(seen), 1) if seen else None


def chat(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    busy, began = GpuBusy(), time.time()
    llm = LLM(model=args.model, **engine_kwargs(args))
    first = time.time()
    params = [SamplingParams(**SAMPLING, max_tokens=r["answer_tokens"]) for r in rows]
    messages: Any = [[{"role": "user", "content": ASK + r["text"]}] for r in rows]
    said = llm.chat(messages, params, use_tqdm=False)
    last = time.time()
    tokens = sum(len(s.prompt_token_ids or ()) + len(s.outputs[0].token_ids) for s in said)
    return figures(rows, began, first, last, tokens, busy.mean(first, last))


def plain(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As the guides have it, with every default."""
    return ray_data(args, rows, {})


def tuned(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As somebody has it who measured: larger batches, more of them at once, several of the processes that
    feed the engine, and no stage that the engine does as well."""
    several = 1 if not has_gpu() else 4
    given = {
        "batch_size": 128,
        "max_concurrent_batches": 32,
        "chat_template_stage": {"concurrency": (1, several)},
        "tokenize_stage": {"concurrency": (1, several)} if has_gpu() else False,
        "detokenize_stage": False,
    }
    return ray_data(args, rows, given)


def ray_data(args: argparse.Namespace, rows: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    busy, began = GpuBusy(), time.time()
    start_ray()
    if not has_gpu():
        given |= {
            "placement_group_config": {"bundles": [{"CPU": 1}]},
            "runtime_env": {"env_vars": CPU_ENV},
        }
    config = vLLMEngineProcessorConfig(
        model_source=args.model, engine_kwargs=engine_kwargs(args), concurrency=1, **given
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
    # A batch leaves the engine when its slowest row is done: it began that long before.
    batches = table.group_by("batch").aggregate([("done", "max"), ("took", "max")]).to_pylist()
    first = min(b["done_max"] - b["took_max"] for b in batches)
    return figures(rows, began, first, last, sum(table["tokens"].to_pylist()), busy.mean(first, last))


def daft(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Its prompt function, which takes texts and one set of parameters for all rows: templates are applied
    before, and rows of different lengths are not for it."""
    import daft
    from daft.execution import vllm as execution
    from daft.functions import prompt
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    class Noted(execution.LocalVLLMExecutor):
        def submit(self, *given: Any) -> None:
            times.append(time.time())
            super().submit(*given)

    times: list[float] = []
    setattr(execution, "LocalVLLMExecutor", Noted)  # noqa: B010
    busy, began = GpuBusy(), time.time()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    (most,) = {r["answer_tokens"] for r in rows}
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": ASK + r["text"]}], tokenize=False, add_generation_prompt=True
        )
        for r in rows
    ]
    frame = daft.from_pydict({"i": [r["i"] for r in rows], "text": texts})
    asked = prompt(
        daft.col("text"),
        provider="vllm-prefix-caching",
        model=args.model,
        engine_args=engine_kwargs(args),
        generate_args={"sampling_params": SamplingParams(**SAMPLING, max_tokens=most)},
        **({} if has_gpu() else {"gpus_per_actor": 0}),
    )
    said = frame.with_column("answer", asked).to_pydict()["answer"]
    assert len(said) == len(rows)
    last = time.time()
    return figures(rows, began, times[0], last, None, busy.mean(times[0], last))


def processor(args: argparse.Namespace, rows: list[dict[str, Any]], engine: str) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.contract.spec import SliceJob
    from airflow_provider_raydatallm.processor import version_build
    from airflow_provider_raydatallm.processor.slice_run import run_slice

    class Noted(version_build.Meter):  # the report has the time between these two, and not when they were
        def figures(self, *given: Any) -> dict[str, Any]:
            times.extend([self._first_request, self._last_row])
            return super().report_sections(*given)

    times: list[Any] = []
    setattr(version_build, "Meter", Noted)  # noqa: B010
    busy, began = GpuBusy(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_pylist(rows), f"{folder}/in.parquet")
        job = SliceJob(
            slice_key="all", input_path=f"{folder}/in.parquet", output_path=f"{folder}/out",
            engine=engine, model_source=args.model, prompt=ASK + "{text}",
            sampling_params={**SAMPLING, "max_tokens": "{answer_tokens}"}, engine_kwargs=engine_kwargs(args),
            **json.loads(args.job),
        )  # fmt: skip
        start_ray()
        report = run_slice(job, lambda said: print(said, file=sys.stderr, flush=True))
    tokens = (report.tokens.input or 0) + (report.tokens.output or 0)
    found = figures(rows, began, times[0], times[1], tokens, busy.mean(*times))
    return {
        **found,
        "report": report.model_dump(mode="json", exclude={"slice_key", "output_path", "version"}),
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modes", nargs="+", choices=MODES)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", choices=("short", "mixed", "prefix"), default="short")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeating", action="store_true", help="prompts that begin as others do")
    parser.add_argument("--grouped", action="store_true", help="rows with the same beginning come together")
    parser.add_argument("--longest", type=int, default=1500, help="words of a prompt, at most")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--dummy", action="store_true", help="weights that say nothing, for a model's shape")
    parser.add_argument("--engine", default="{}", help="JSON of more engine arguments, for all modes")
    parser.add_argument("--job", default="{}", help="JSON of more fields of the processor's spec")
    args = parser.parse_args()
    if len(args.modes) > 1:
        rest = sys.argv[1 + len(args.modes) :]
        for mode in args.modes:
            subprocess.run([sys.executable, "-m", "benchmarks.gpu.compare", mode, *rest], check=False)
        return
    [mode] = args.modes
    rows = rows_of(args.work, args.rows, args.repeating, args.longest, args.grouped)
    run = {"chat": chat, "plain": plain, "tuned": tuned, "daft": daft}.get(mode)
    found = run(args, rows) if run else processor(args, rows, mode)
    print("RESULT " + json.dumps({"mode": mode, "work": args.work, **found}), flush=True)
    os._exit(0)  # engines take their time to end


if __name__ == "__main__":
    main()
