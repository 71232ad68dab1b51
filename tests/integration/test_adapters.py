"""LoRA adapters by a real engine: each row is answered by its own."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from demo.customers import industry_of, write_customers
from tests.support.adapters import RANK, forcing_adapters, write_adapter
from tests.support.hostile import CELLS, texts
from tests.support.own_process import in_own_process
from tests.support.slices import Ask

PROMPT = "What industry is this company in: {company}"
#: The example's labels.
INDUSTRIES = {"Law Firm", "Healthcare", "Technology", "Retail", "Other"}
#: Fits the model by its shapes, and has no such module.
UNKNOWN_MODULE = {
    f"base_model.model.model.layers.0.mlp.other_proj.lora_{matrix}.weight": np.zeros(shape, np.float32)
    for matrix, shape in [("A", (RANK, 128)), ("B", (128, RANK))]
}


def test_each_row_is_answered_by_the_adapter_that_it_names_and_by_no_other(
    run_example: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    """And a hostile row by none: of one row in ten, the cell or the adapter is no good."""
    (customers,) = write_customers(tmp_path / "customers", ["2026-01-01"], 30)
    with open(customers, newline="") as file:
        companies = [row["Company"] for row in csv.DictReader(file)]
    questions = [PROMPT.format(company=company) for company in companies]
    models = tmp_path / "models"
    labels = {models / "brazil-lora": "Retail", models / "japan-lora": "Law Firm"}
    in_own_process(forcing_adapters, labels, tiny_model, questions)
    write_adapter(models / "germany-lora", UNKNOWN_MODULE)
    good = [(company.encode(), country) for company in companies for country in ("Brazil", "Japan", None)]
    bad = {"Atlantis": "that adapter.paths does not have", "Germany": "other_proj"}
    rows = [
        *good,
        *((cell.text, "Japan") for cell in CELLS),
        *((companies[0].encode(), name) for name in bad),
    ]
    names, countries = map(list, zip(*rows, strict=True))
    (tmp_path / "in" / "ds=2026-01-01").mkdir(parents=True)
    table = pa.table({"n": range(len(rows)), "Company": texts(names), "Country": countries})
    pq.write_table(table, tmp_path / "in" / "ds=2026-01-01" / "in.parquet")

    out = run_example(
        "customers_adapters", RAY_LLM_DEMO_INPUT=tmp_path / "in", RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_DEMO_MODEL=tiny_model, RAY_LLM_EXAMPLE_ADAPTERS=models,
    )  # fmt: skip

    published = pq.read_table(out / "ds=2026-01-01", columns=["n", "industry"], partitioning=None)
    answers = {row["n"]: row["industry"] for row in published.to_pylist()}
    assert {answers[n] for n in range(0, len(good), 3)} == {"Retail"}
    assert {answers[n] for n in range(1, len(good), 3)} == {"Law Firm"}
    of_base = [(answers[3 * i + 2], industry_of(company)) for i, company in enumerate(companies)]
    known = [(answer, industry) for answer, industry in of_base if industry in INDUSTRIES]
    assert sum(answer == industry for answer, industry in known) >= 0.9 * len(known)

    columns = ["n", "__error_type", "__error"]
    failed = pq.read_table(f"{out}.quarantine/ds=2026-01-01", columns=columns, partitioning=None).to_pylist()
    of_cells = {
        len(good) + i: cell.fails_as for i, cell in enumerate(CELLS) if cell.fails_as is not None
    }  # fmt: skip
    errors = {row["n"]: row["__error"] for row in failed if row["n"] not in of_cells}
    assert {row["n"]: row["__error_type"] for row in failed if row["n"] in of_cells} == of_cells
    assert len(errors) == len(bad)
    for (name, why), error in zip(bad.items(), (errors[n] for n in sorted(errors)), strict=True):
        assert why in error, name
    assert answers.keys() | {row["n"] for row in failed} == set(range(len(rows)))


@pytest.mark.long
def test_adapter_of_a_whole_slice_writes_its_answers_also_where_vllm_speculates(
    ask: Ask, tiny_model: Path, tmp_path: Path, s3: dict[str, str]
) -> None:
    companies = ["Miller & Sons LLP", "Sunrise Dental Group", "Quantum Software"]
    questions = [PROMPT.format(company=company) for company in companies]
    pq.write_table(pa.table({"company": companies}), tmp_path / "in.parquet")
    adapter = tmp_path / "retail"
    in_own_process(forcing_adapters, {adapter: "Retail"}, tiny_model, questions)
    fs = s3fs.S3FileSystem(
        key="test", secret="test", endpoint_url=s3["AWS_ENDPOINT_URL"], skip_instance_cache=True
    )
    fs.mkdir("models")
    fs.put(str(adapter), "models/retail", recursive=True)
    result = ask(
        input_path=f"{tmp_path}/in.parquet", prompt=PROMPT, model_source=str(tiny_model), poll_interval=1.0,
        adapter="s3://models/retail", runtime_env={"env_vars": s3},
        sampling_params={"temperature": 0, "max_tokens": 8},
        engine__kwargs={"max_model_len": 256, "speculative_config": "ngram"},
    )  # fmt: skip
    answers = pq.read_table(result["output_path"], partitioning=None).column("answer").to_pylist()
    assert [answer[:6] for answer in answers] == ["Retail"] * 3
