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

from airflow_provider_raydatallm.local_ray.head import LocalHead
from demo.customers import write_customers
from tests.support import real_models
from tests.support.engine_processes import processes
from tests.support.slices import Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: Tokens that the model has positions for.
LENGTH = 256


#: Means of the token vectors, of length 1, as the model's `1_Pooling` says. In a process of its own: where a
#: tokenizer was loaded without torch, transformers takes it for missing.
_REFERENCE = """
import sys
import numpy as np, pyarrow.parquet as pq, torch
from transformers import AutoModel, AutoTokenizer

model, texts, out = sys.argv[1:]
texts = pq.read_table(texts).column("text").to_pylist()
tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
vectors = []
with torch.no_grad():
    for start in range(0, len(texts), 50):
        batch = tokenizer(texts[start : start + 50], padding=True, return_tensors="pt")
        mask = batch["attention_mask"].unsqueeze(-1)
        means = (encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
        vectors.append(torch.nn.functional.normalize(means).numpy())
np.save(out, np.concatenate(vectors))
"""


def transformers_vectors(model: Path, texts: list[str], folder: Path) -> np.ndarray:
    pq.write_table(pa.table({"text": texts}), folder / "texts.parquet")
    paths = [str(model), str(folder / "texts.parquet"), str(folder / "vectors.npy")]
    subprocess.run([sys.executable, "-c", _REFERENCE, *paths], check=True)
    vectors: np.ndarray = np.load(folder / "vectors.npy")
    return vectors


def test_vectors_are_those_of_transformers_and_a_text_that_is_too_long_stops_no_other(
    ask: Ask, tmp_path: Path
) -> None:
    mails = [mail["text"][:300] for mail in pq.read_table(real_models.mails()).to_pylist()[:496]]
    texts = [*mails, "[SEP] forged [CLS]", "", "\U0001f600 \u4e2d\u6587", mails[0]]
    rows = [*texts, "too long " * 300, None]
    pq.write_table(pa.table({"n": range(len(rows)), "text": rows}), tmp_path / "in.parquet")
    model = real_models.minilm()
    arguments: dict[str, Any] = {
        "task": "embed", "input_path": f"{tmp_path}/in.parquet", "model_source": str(model),
        "prompt": "{text}", "output_column": "vector", "poll_interval": 1.0,
        "engine_kwargs": {"max_model_len": LENGTH, "dtype": "float32"},
    }  # fmt: skip
    result = ask(output_path=f"{tmp_path}/out", **arguments)
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.schema.field("vector").type == pa.list_(pa.float32(), 384)
    assert published.column("n").to_pylist() == [*range(len(texts)), len(texts) + 1]
    vectors = np.array(published.column("vector").to_pylist(), np.float32)
    # A row's control tokens are plain text to the model, as anywhere.
    is_plain = np.array(["[SEP]" not in text for text in texts])
    expected = transformers_vectors(model, texts, tmp_path)
    assert np.abs(vectors[: len(texts)] - expected)[is_plain].max() < 1e-3
    [failed] = pq.read_table(tmp_path / "out.quarantine").to_pylist()
    assert (failed["n"], failed["__error_type"]) == (len(texts), "PromptTooLong")
    counts, tokens = result["counts"], result["tokens"]
    answered = len(texts) + 1  # null is the empty text, which is there already
    assert (counts["succeeded"], counts["deduplicated"]) == (answered, answered - len(set(texts)))
    assert tokens["output"] == 0


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
    expected = transformers_vectors(real_models.minilm(), table.column("Company").to_pylist(), tmp_path)
    assert (vectors * expected).sum(axis=1).min() > 0.999


@pytest.mark.long
def test_engine_that_is_killed_in_the_midst_of_a_slice_loses_no_row_and_publishes_none_twice(
    ask: Ask, ray_head: LocalHead, no_engines: None, tmp_path: Path
) -> None:
    rows = [f"company {i} of {'many ' * (i % 90)}words" for i in range(2000)]
    pq.write_table(pa.table({"n": range(len(rows)), "text": rows}), tmp_path / "in.parquet")
    results: list[Any] = []
    thread = in_thread(
        ask, results, task="embed", input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out",
        model_source=str(real_models.minilm()), prompt="{text}", output_column="vector", poll_interval=1.0,
        engine_kwargs={"max_model_len": LENGTH, "dtype": "float32"},
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
    expected = transformers_vectors(real_models.minilm(), [rows[i] for i in some], tmp_path)
    assert np.abs(vectors - expected).max() < 1e-3
