"""Classification heads and rerankers on real vLLM, by their example DAGs: the numbers are those of
transformers, and a hostile row stops no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import real_models
from tests.support.bert import write_bert
from tests.support.hostile import CELLS, texts
from tests.support.own_process import in_own_process

RunDag = Callable[..., Path]

#: A classifier of mails: MiniLM's vectors and a head fitted to some of them. In a process of its own, as what
#: loads tokenizers without torch hides it from transformers.
_FIT = """
import sys
import pyarrow.parquet as pq, torch
from transformers import AutoModel, AutoTokenizer, BertForSequenceClassification

source, mails, folder = sys.argv[1:4]
rows = pq.read_table(mails).to_pylist()
tokenizer, encoder = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source).eval()
firsts = []
with torch.no_grad():
    for start in range(0, len(rows), 50):
        texts = [row["text"] for row in rows[start : start + 50]]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        firsts.append(encoder(**batch).last_hidden_state[:, 0])
firsts, is_spam = torch.cat(firsts), torch.tensor([int(row["is_spam"]) for row in rows])
model = BertForSequenceClassification.from_pretrained(source, num_labels=2)
mean, spread, size = firsts.mean(0), 2 * firsts.std(0), firsts.shape[1]
with torch.no_grad():  # the pooler passes the first token's vector on, standardized
    model.bert.pooler.dense.weight.copy_(torch.diag(1 / spread))
    model.bert.pooler.dense.bias.copy_(-mean / spread)
pooled = torch.tanh((firsts - mean) / spread)
head = torch.nn.Linear(size, 2)
optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200)
def loss():
    optimizer.zero_grad()
    value = torch.nn.functional.cross_entropy(head(pooled), is_spam) + 1e-3 * head.weight.square().sum()
    value.backward()
    return value
optimizer.step(loss)
model.classifier.load_state_dict(head.state_dict())
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
"""

#: What transformers says: probabilities of a classifier's labels, or a reranker's scores.
_REFERENCE = """
import json, sys
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, out = sys.argv[-2:]
texts = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
numbers = []
with torch.no_grad():
    for text in texts:
        logits = model(**tokenizer(*text, return_tensors="pt", truncation=True, max_length=256)).logits[0]
        numbers.append((logits.softmax(0) if len(logits) > 1 else logits.sigmoid()).tolist())
json.dump(numbers, open(out, "w"))
"""


def run_python(script: str, *arguments: Any, stdin: str = "") -> None:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def transformers_says(folder: Path, texts: list[list[str]], out: Path) -> np.ndarray:
    run_python(_REFERENCE, folder, out, stdin=json.dumps(texts))
    return np.array(json.loads(out.read_text()))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "ds=2026-01-01", partitioning=None).to_pylist()
    return rows


def quarantined(folder: Path) -> list[dict[str, Any]]:
    """Without cells that Python cannot read."""
    rows: list[dict[str, Any]] = pq.read_table(folder, columns=["n", "__error_type"]).to_pylist()
    return rows


def write_slice(folder: Path, rows: pa.Table) -> None:
    (folder / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(rows, folder / "ds=2026-01-01" / "rows.parquet")


def test_real_mails_are_sorted_as_transformers_would_and_rightly(run_example: RunDag, tmp_path: Path) -> None:
    mails = [
        {**mail, "text": mail["text"][:200]}
        for mail in pq.read_table(real_models.mails()).to_pylist() if len(mail["text"]) > 50
    ]  # fmt: skip
    spam = [mail for mail in mails if mail["is_spam"]]
    ham = [mail for mail in mails if not mail["is_spam"]]
    known, asked = (
        [mail for pair in zip(spam[a:b], ham[a:b], strict=True) for mail in pair]
        for a, b in ((0, 100), (100, 130))
    )
    pq.write_table(pa.Table.from_pylist(known), tmp_path / "known.parquet")
    model = tmp_path / "model"
    numbers, stdin = tmp_path / "numbers.json", json.dumps([[mail["text"]] for mail in asked])
    run_python(
        _FIT + _REFERENCE, real_models.minilm(), tmp_path / "known.parquet", model, numbers, stdin=stdin
    )
    cells = [mail["text"].encode() for mail in asked] + [cell.text for cell in CELLS]
    is_spam = [mail["is_spam"] for mail in asked] + [True] * len(CELLS)
    write_slice(tmp_path / "in", pa.table({"n": range(len(cells)), "text": texts(cells), "is_spam": is_spam}))

    out = run_example(
        "mails_classify",
        RAY_LLM_EXAMPLE_MAILS=tmp_path / "in",
        RAY_LLM_EXAMPLE_MAILS_OUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_MAILS_MODEL=model,
    )
    rows = rows_of(out)
    assert [row["n"] for row in rows] == list(range(len(cells)))  # what is too long is cut
    expected = np.array(json.loads(numbers.read_text()))
    of_label = [{"ham": p[0], "spam": p[1]}[row["kind"]] for row, p in zip(rows, expected, strict=False)]
    answered = [row["kind_probability"] for row in rows[: len(asked)]]
    apart = np.abs(np.array(answered) - of_label)
    # In float32 1e-6. In bfloat16, where the CPU has it, it depends on the CPU how far single rows are off.
    assert np.median(apart) < 0.003
    assert apart.max() < 0.1
    right = [row["is_spam"] == (row["kind"] == "spam") for row in rows[: len(asked)]]
    assert np.mean(right) >= 0.75
    sure = rows[0]
    assert sure["kind_probability"] + sure["kind_runner_up_probability"] == pytest.approx(1, abs=1e-3)
    report = json.loads(next((tmp_path / "out.ray_llm").rglob("report*.json")).read_text())
    assert report["counts"] | {"planned": len(cells), "shortened": 2} == report["counts"]
    assert report["tokens"]["output"] == 0


@pytest.mark.long
def test_scores_are_those_of_transformers(run_example: RunDag, tmp_path: Path) -> None:
    model = in_own_process(write_bert, tmp_path / "model", ["fit"])
    words = ["a", "bank", "law firm", "sells cars online", "makes large cars", "and", ""]
    pairs = [[query, f"{text} {i}"] for i, query in enumerate(words * 4) for text in words]
    hostile = [cell.text for cell in CELLS]
    queries, results = (
        [pair[i].encode() for pair in pairs]
        + [b"law"] * i * len(hostile)
        + hostile
        + [b"law"] * (1 - i) * len(hostile)
        for i in (0, 1)
    )
    table = pa.table({"n": range(len(queries)), "query": texts(queries), "result": texts(results)})
    write_slice(tmp_path / "in", table)
    out = run_example(
        "search_score",
        RAY_LLM_EXAMPLE_SEARCHES=tmp_path / "in",
        RAY_LLM_EXAMPLE_SEARCHES_OUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_RERANKER=model,
    )
    rows = rows_of(out)
    kinds = dict(enumerate([cell.fails_as for cell in CELLS] * 2, len(pairs)))
    assert [row["n"] for row in rows] == [n for n in range(len(queries)) if kinds.get(n) is None]
    scores = np.array([row["score"] for row in rows[: len(pairs)]])
    expected = transformers_says(model, pairs, tmp_path / "numbers.json")[:, 0]
    assert scores.std() > 0.05
    # A random model of bfloat16; with a pair's types left out, the correlation is 0.2.
    assert np.median(np.abs(scores - expected)) < 0.02
    assert np.corrcoef(scores, expected)[0, 1] > 0.98
    failed = quarantined(tmp_path / "out.quarantine")
    wanted = {n: kind for n, kind in kinds.items() if kind is not None}
    assert {row["n"]: row["__error_type"] for row in failed} == wanted
