"""Labels compared in a token beside labels that a grammar has the model write, by a real chat model on real
mails: how often they are the same, and why not.

    python -m benchmarks.label_agreement

Of the columns, `on labels` is the probability that the model begins its answer with a label by itself, and
`by itself` are the tokens that it would begin with; `split` is the share of rows in which the grammar's first
token is none of the labels' own, `ties` that of rows in which two labels are equally probable (bfloat16).
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import Any

from benchmarks.table import print_rows
from tests.support.slice_jobs import spec

MAILS = int(os.environ.get("BENCH_MAILS", 200))
CHARS = 400


TOPICS = ("Advertising", "Software", "News", "Finance", "Personal", "Other")
#: Prompts that ask for a label, and one that does not.
CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Mail: {text}\n\nIs this mail an advertisement? Answer yes or no.", ("Yes", "No")),
    (f"Mail: {{text}}\n\nWhat is this mail about? Answer with one word only: {', '.join(TOPICS)}.", TOPICS),
    ("Mail: {text}\n\nIs this mail spam or ham? Answer with one word only.", ("spam", "ham")),
    ("{text}", TOPICS),
)


def run() -> None:
    import pyarrow.parquet as pq
    from vllm import LLM

    from tests.support import real_models

    # As an eager worker on CPUs has it (`engine_base`).
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
    model = str(real_models.smollm2())
    mails = [mail for mail in pq.read_table(real_models.mails()).to_pylist() if len(mail["text"]) > 50]
    of_kinds = [[mail for mail in mails if mail["is_spam"] is kind][: MAILS // 2] for kind in (True, False)]
    rows = [{**mail, "text": mail["text"][:CHARS]} for of_kind in of_kinds for mail in of_kind]
    llm = LLM(model, enforce_eager=True, max_model_len=1024, disable_log_stats=True)
    table = [_compare(llm, model, *case, rows) for case in CASES]
    print_rows(["labels", "on labels", "the same", "ties", "split", "by itself"], table)


def _compare(
    llm: Any, model: str, prompt: str, labels: tuple[str, ...], rows: list[dict[str, Any]]
) -> list[str]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from airflow_provider_raydatallm.processor.engines.vllm.request.labels.tree import LABELS, LabelTree
    from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import PromptTokenizer
    from airflow_provider_raydatallm.processor.request.requests import RequestBuilder

    job = spec(
        slice_key="k", input_path="/in", output_path="/out", model_source=model, engine="vllm",
        prompt=prompt, choices=labels, labels__confidence=True,
    )  # fmt: skip
    builder = RequestBuilder(["text"], prompt=job.task.prompt)
    tokenizer = PromptTokenizer(job)
    prompts = tokenizer([json.dumps(builder.build({"text": row["text"]})) for row in rows])
    tree = LabelTree.from_json(json.loads(prompts[0].params)[LABELS])
    own_tokens = {token for request in tree.requests for token in request.tokens}

    def ask(prefix: tuple[int, ...], **params: Any) -> Any:
        requests = [{"prompt_token_ids": [*prompt.tokens, *prefix]} for prompt in prompts]
        return llm.generate(requests, SamplingParams(temperature=0, **params), use_tqdm=False)

    grammar = StructuredOutputsParams(choice=list(labels))
    outputs = [output.outputs[0] for output in ask((), max_tokens=16, structured_outputs=grammar)]
    written = [output.text for output in outputs]
    logprobs: list[dict[int, list[float]]] = [{} for _ in rows]
    for number, request in enumerate(tree.requests):
        for row, output in enumerate(ask(request.prefix, max_tokens=1, logprob_token_ids=[*request.tokens])):
            [of_tokens] = output.outputs[0].logprobs
            logprobs[row][number] = [of_tokens[token].logprob for token in request.tokens]
    numbers = [tree.probabilities(of_row) for of_row in logprobs]
    compared = [labels[max(range(len(n)), key=n.__getitem__)] for n in numbers]
    by_itself = Counter(output.outputs[0].text.strip() for output in ask((), max_tokens=1))

    def share(hits: list[bool]) -> str:
        return f"{sum(hits) / len(rows):.0%}"

    on_labels = sum(math.exp(p) for of_row in logprobs for p in of_row[0]) / len(rows)
    split = [output.token_ids[0] not in own_tokens for output in outputs]
    ties = [math.isclose(*sorted(of_row)[-2:], rel_tol=1e-6) for of_row in numbers]
    same = [a == b for a, b in zip(written, compared, strict=True)]
    likely = ", ".join(word for word, _ in by_itself.most_common(3))
    return [", ".join(labels), f"{on_labels:.1%}", share(same), share(ties), share(split), likely]


if __name__ == "__main__":
    run()
