"""Answers by an `output_schema`, by a real chat model on real mails: how many are valid, what ended the
others, and how many tokens they took.

    python -m benchmarks.structured [WAY ...]

Each way is a slice by the processor, on CPUs, with an engine of its own. A `structured_outputs_config` of the
user's own takes the place of the provider's bounds: "auto" is vLLM's default, so its lines are vLLM as it
comes. Shares are of all rows, and so are the tokens. `in whitespace` are those of the cut answers that end in
whitespace between two values. BENCH_WORST=3 prints the longest invalid answers of each way.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.table import print_rows, say
from tests.support.slice_jobs import spec

MAILS = int(os.environ.get("BENCH_MAILS", 200))
WORST = int(os.environ.get("BENCH_WORST", 0))
CHARS = 600
MAX_TOKENS = 256
PROMPT = (
    "Mail: {text}\n\nDescribe this mail in JSON: its sender (name and role), its topic, a summary in one "
    "sentence, and its action items (what is to be done, and when it is due)."
)


def schema(*, is_open: bool = False, has_limits: bool = False) -> dict[str, Any]:
    """:param has_limits: of the lengths of texts and lists."""
    text = {"type": "string"} | ({"maxLength": 120} if has_limits else {})
    items = {"type": "array"} | ({"maxItems": 3} if has_limits else {})

    def record(**properties: Any) -> dict[str, Any]:
        return {
            "type": "object", "properties": properties, "required": [*properties],
            "additionalProperties": is_open,
        }  # fmt: skip

    return record(
        sender=record(name=text, role=text),
        topic={"enum": ["advertising", "software", "news", "finance", "personal", "other"]},
        summary=text,
        action_items=items | {"items": record(what=text, due=text)},
    )


def _by(backend: str) -> dict[str, Any]:
    return {"engine__kwargs": {"structured_outputs_config": {"backend": backend}}}


CLOSED = {"output_schema": schema()}
OPEN = {"output_schema": schema(is_open=True)}
LIMITED = {"output_schema": schema(has_limits=True)}
WAYS: dict[str, dict[str, Any]] = {
    "vllm": CLOSED | _by("auto"),
    "provider": CLOSED,
    "guidance": CLOSED | _by("guidance"),
    "vllm-open": OPEN | _by("auto"),
    "provider-open": OPEN,
    "vllm-limited": LIMITED | _by("auto"),
    "provider-limited": LIMITED,
}


def run(ways: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray

    from tests.support import real_models

    mails = [mail for mail in pq.read_table(real_models.mails()).to_pylist() if len(mail["text"]) > 50]
    of_kinds = [[mail for mail in mails if mail["is_spam"] is kind] for kind in (True, False)]
    sample = [mail for of_kind in of_kinds for mail in of_kind[:: len(of_kind) * 2 // MAILS][: MAILS // 2]]
    ray.init("local", logging_level="ERROR", include_dashboard=False, num_cpus=12)
    table = []
    with tempfile.TemporaryDirectory() as folder:
        texts = pa.table({"text": [mail["text"][:CHARS] for mail in sample]})
        pq.write_table(texts, f"{folder}/in.parquet")
        for way in ways:
            table.append([way, *_slice(Path(folder), way, len(sample))])
            say(", ".join(table[-1]))
    print_rows(["", "valid", "cut", "in whitespace", "degenerate", "tokens a row"], table)


def _slice(folder: Path, way: str, rows: int) -> list[str]:
    import pyarrow.parquet as pq

    from airflow_provider_raydatallm.processor.slice_run import run_slice
    from tests.support import real_models

    kwargs = {"max_model_len": 1024, **WAYS[way].get("engine__kwargs", {})}
    job = spec(
        slice_key="all", input_path=f"{folder}/in.parquet", output_path=f"{folder}/{way}", engine="vllm",
        model_source=str(real_models.smollm2()), prompt=PROMPT, quality__max_quarantine=1,
        sampling_params={"temperature": 0, "max_tokens": MAX_TOKENS},
        **{**WAYS[way], "engine__kwargs": kwargs},
    )  # fmt: skip
    report = run_slice(job, lambda progress: None)
    counts = report.counts
    invalid = [
        (kind, _answer(error))
        for file in sorted(folder.glob(f"{way}.quarantine/**/*.parquet"))
        for kind, error in zip(*(pq.read_table(file, columns=[name])[name].to_pylist()
                                 for name in ("__error_type", "__error")), strict=True)
    ]  # fmt: skip
    for kind, text in sorted(invalid, key=lambda answer: -len(answer[1]))[:WORST]:
        say(f"{way}: {kind}: {text!r}")
    in_whitespace = sum(_ends_between_values(text) for kind, text in invalid if kind == "TruncatedAnswer")

    def share(number: int | None) -> str:
        return f"{(number or 0) / rows:.1%}"

    kinds = [kind for kind, _ in invalid]
    return [
        share(counts.succeeded), share(kinds.count("TruncatedAnswer")), share(in_whitespace),
        share(kinds.count("DegenerateAnswer")), f"{(report.tokens.output or 0) / rows:.1f}",
    ]  # fmt: skip


def _answer(error: str) -> str:
    """The answer that an error of quarantine quotes at its end."""
    quoted = re.search(r""": ('\s*\{.*'|"\s*\{.*")$""", error, re.DOTALL)
    return str(ast.literal_eval(quoted[1])) if quoted else error


def _ends_between_values(text: str) -> bool:
    outside = re.sub(r'"(\\.|[^"\\])*("|$)', "*", text)
    return outside != outside.rstrip()


if __name__ == "__main__":
    run(sys.argv[1:] or [*WAYS])
    os._exit(0)  # engines are slow to end
