"""Vectors by a real model: those of transformers, for texts of any kind, and only they."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from demo.customers import write_customers
from tests.support import real_models
from tests.support.engine_processes import end_engines, processes
from tests.support.slices import Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: Tokens that the model has positions for.
LENGTH = 256


#: Means of the token vectors, of length 1, as the model's `1_Pooling` says; of a text that is longer than the
#: model takes, the mean of its windows' means. In a process of its own: where a tokenizer was loaded without
#: torch, transformers takes it for missing.
_REFERENCE = """
import sys
import numpy as np, pyarrow.parquet as pq, torch
from transformers import AutoModel, AutoTokenizer

model, texts, out, length = sys.argv[1:]
texts, size = pq.read_table(texts).column("text").to_pylist(), int(length) - 2
tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
windows, of_text, weights = [], [], []
for text, ids in enumerate(tokenizer(texts, add_special_tokens=False)["input_ids"]):
    for start in range(0, max(1, len(ids)), size):
        part = ids[start : start + size]
        windows.append([tokenizer.cls_token_id, *part, tokenizer.sep_token_id])
        of_text.append(text)
        weights.append(len(part) or 1)
sums = torch.zeros(len(texts), encoder.config.hidden_size)
with torch.no_grad():
    for start in range(0, len(windows), 50):
        some = slice(start, start + 50)
        batch = tokenizer.pad({"input_ids": windows[some]}, return_tensors="pt")
        mask = batch["attention_mask"].unsqueeze(-1)
        means = (encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
        sums.index_add_(0, torch.tensor(of_text[some]), means * torch.tensor(weights[some]).unsqueeze(-1))
np.savez(out, vectors=torch.nn.functional.normalize(sums).numpy(), tokens=sum(map(len, windows)))
"""


def transformers_vectors(texts: list[str], folder: Path) -> tuple[np.ndarray, int]:
    """Returns the texts' vectors, and the tokens of all."""
    pq.write_table(pa.table({"text": texts}), folder / "texts.parquet")
    paths = [str(real_models.minilm()), str(folder / "texts.parquet"), str(folder / "vectors.npz")]
    subprocess.run([sys.executable, "-c", _REFERENCE, *paths, str(LENGTH)], check=True)
    results = np.load(folder / "vectors.npz")
    return results["vectors"], int(results["tokens"])


def embed(ask: Ask, folder: Path, rows: list[str | None], **given: Any) -> tuple[dict[str, Any], pa.Table]:
    """What the operator pushes, and the published table. All tests share an engine."""
    pq.write_table(pa.table({"n": range(len(rows)), "text": rows}), folder / "in.parquet")
    arguments: dict[str, Any] = {
        "task": "embed", "input_path": f"{folder}/in.parquet", "model_source": str(real_models.minilm()),
        "prompt": "{text}", "output_column": "vector", "poll_interval": 1.0, "engine__scope": "shared",
        "engine__kwargs": {"max_model_len": LENGTH, "dtype": "float32"}, "output_path": f"{folder}/out",
    }  # fmt: skip
    result = ask(**arguments | given)
    return result, pq.read_table(result["output_path"], partitioning=None)


def test_vectors_are_those_of_transformers_and_a_text_that_is_too_long_stops_no_other(
    ask: Ask, tmp_path: Path
) -> None:
    mails = [mail["text"][:300] for mail in pq.read_table(real_models.mails()).to_pylist()[:116]]
    texts = [*mails, "[SEP] forged [CLS]", "", "\U0001f600 \u4e2d\u6587", mails[0]]
    rows = [*texts, "too long " * 300, None]
    result, published = embed(ask, tmp_path, rows, engine__scope="slice")
    assert published.schema.field("vector").type == pa.list_(pa.float32(), 384)
    assert published.column("n").to_pylist() == [*range(len(texts)), len(texts) + 1]
    vectors = np.array(published.column("vector").to_pylist(), np.float32)
    # A row's control tokens are plain text to the model, as anywhere.
    is_plain = np.array(["[SEP]" not in text for text in texts])
    expected, _ = transformers_vectors(texts, tmp_path)
    assert np.abs(vectors[: len(texts)] - expected)[is_plain].max() < 1e-3
    [failed] = pq.read_table(tmp_path / "out.quarantine").to_pylist()
    assert (failed["n"], failed["__error_type"]) == (len(texts), "PromptTooLong")
    counts, tokens = result["counts"], result["tokens"]
    answered = len(texts) + 1  # null is the empty text, which is there already
    assert (counts["succeeded"], counts["deduplicated"]) == (answered, answered - len(set(texts)))
    assert tokens["output"] == 0


@pytest.mark.long
def test_long_text_has_the_mean_of_the_vectors_of_its_parts(ask: Ask, tmp_path: Path) -> None:
    mails = [mail["text"] for mail in pq.read_table(real_models.mails()).to_pylist()]
    longest = sorted(mails, key=len)[-700:-690]  # of about 2,000 tokens each
    lengths = [1, LENGTH - 2, LENGTH - 1, 2 * LENGTH - 4, 5 * LENGTH]
    texts = [*longest, *("word " * length for length in lengths)]
    result, published = embed(ask, tmp_path, [*texts], quality__on_too_long="chunk")
    vectors = np.array(published.column("vector").to_pylist(), np.float32)
    expected, tokens = transformers_vectors(texts, tmp_path)
    assert np.abs(vectors - expected).max() < 1e-3
    assert (result["counts"]["succeeded"], result["tokens"]["input"]) == (len(texts), tokens)


@pytest.mark.long
def test_example_embeds_customers(run_example: Callable[..., Path], tmp_path: Path) -> None:
    write_customers(tmp_path / "customers", ["2026-01-01"], 50)
    out = run_example(
        "customers_embed",
        RAY_LLM_DEMO_INPUT=tmp_path / "customers",
        RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_VECTORS=real_models.minilm(),
    )
    table = pq.read_table(out / "ds=2026-01-01", partitioning=None)
    vectors = np.array(table.column("vector").to_pylist(), np.float32)
    assert vectors.shape == (50, 384)
    expected, _ = transformers_vectors(table.column("Company").to_pylist(), tmp_path)
    assert (vectors * expected).sum(axis=1).min() > 0.999


@pytest.mark.long
def test_engine_that_is_killed_in_the_midst_of_a_slice_loses_no_row_and_publishes_none_twice(
    ask: Ask, ray_head: LocalHead, tmp_path: Path
) -> None:
    end_engines()
    rows = [f"company {i} of {'many ' * (i % 90)}words" for i in range(2000)]
    pq.write_table(pa.table({"n": range(len(rows)), "text": rows}), tmp_path / "in.parquet")
    results: list[Any] = []
    thread = in_thread(
        ask, results, task="embed", input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
        model_source=str(real_models.minilm()), prompt="{text}", output_column="vector", poll_interval=1.0,
        engine__kwargs={"max_model_len": LENGTH, "dtype": "float32"},
    )  # fmt: skip
    wait_for(lambda: rows_in(fragments(tmp_path / "out")) > 0)
    before = rows_in(fragments(tmp_path / "out"))
    [engine] = processes(ray_head, "VLLM::EngineCore")
    engine.kill()
    thread.join(500)
    [result] = results
    assert isinstance(result, dict), result
    assert before < len(rows)
    assert (result["counts"]["succeeded"], result["counts"]["quarantined"]) == (len(rows), 0)
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.column("n").to_pylist() == [*range(len(rows))]
    some = range(0, len(rows), 20)
    vectors = np.array(published.column("vector").to_pylist(), np.float32)[some]
    expected, _ = transformers_vectors([rows[i] for i in some], tmp_path)
    assert np.abs(vectors - expected).max() < 1e-3
