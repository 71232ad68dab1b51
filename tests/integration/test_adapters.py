"""LoRA adapters by a real engine: each row is answered by its own."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from demo.customers import LABELS, industry_of, write_customers
from tests.support.adapters import RANK, forcing_adapter, write_adapter
from tests.support.own_process import in_own_process
from tests.support.slices import Ask

pytestmark = pytest.mark.usefixtures("no_engines")

PROMPT = "What industry is this company in: {company}"
#: Fits the model by its shapes, and has no such module.
UNKNOWN_MODULE = {
    f"base_model.model.model.layers.0.mlp.other_proj.lora_{matrix}.weight": np.zeros(shape, np.float32)
    for matrix, shape in [("A", (RANK, 128)), ("B", (128, RANK))]
}


def test_each_row_is_answered_by_the_adapter_that_it_names_and_by_no_other(
    ask: Ask, tiny_model: Path, tmp_path: Path, s3: dict[str, str]
) -> None:
    (customers,) = write_customers(tmp_path / "customers", ["2026-01-01"], 30)
    with open(customers, newline="") as file:
        companies = [row["Company"] for row in csv.DictReader(file)]
    questions = [PROMPT.format(company=company) for company in companies]
    retail = in_own_process(forcing_adapter, tmp_path / "retail", tiny_model, "Retail", questions)
    law_firm = in_own_process(forcing_adapter, tmp_path / "law_firm", tiny_model, "Law Firm", questions)
    fs = s3fs.S3FileSystem(
        key="test", secret="test", endpoint_url=s3["AWS_ENDPOINT_URL"], skip_instance_cache=True
    )
    fs.mkdir("models")
    fs.put(str(law_firm), "models/law_firm", recursive=True)
    paths = {
        "shop": str(retail),
        "court": "s3://models/law_firm",
        "broken": str(write_adapter(tmp_path / "broken", UNKNOWN_MODULE)),
    }
    tenants = ["shop", "court", None, "nobody", "broken"]
    rows = [(c, t) for c in companies for t in tenants[:3]] + [(companies[0], t) for t in tenants[3:]]
    columns = dict(zip(("company", "tenant"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")

    result = ask(
        input_path=f"{tmp_path}/in.parquet", prompt=PROMPT, model_source=str(tiny_model),
        choices=list(LABELS), output_column="industry", poll_interval=1.0,
        adapter={"paths": paths, "column": "tenant", "on_null": "base"},
        engine_kwargs={"max_model_len": 256}, runtime_env={"env_vars": s3},
    )  # fmt: skip

    counts = result["counts"]
    assert (counts["succeeded"], counts["quarantined"], counts["deduplicated"]) == (90, 2, 0)
    table = pq.read_table(result["output_path"], partitioning=None)
    by_tenant: dict[str | None, list[str]] = {}
    for row in table.to_pylist():
        by_tenant.setdefault(row["tenant"], []).append(row["industry"])
    assert set(by_tenant["shop"]) == {"Retail"}
    assert set(by_tenant["court"]) == {"Law Firm"}
    right = sum(label == industry_of(c) for label, c in zip(by_tenant[None], companies, strict=True))
    assert right >= 28
    failed = pq.read_table(f"{tmp_path}/out.quarantine/ds=2026-01-31").to_pylist()
    errors = {row["tenant"]: row["__error"] for row in failed}
    assert "adapter.paths has no adapter of that name" in errors["nobody"]
    assert "vLLM cannot load adapter 'broken'" in errors["broken"]
    assert "other_proj" in errors["broken"]


@pytest.mark.long
def test_adapter_of_a_whole_slice_writes_its_answers_also_where_vllm_speculates(
    ask: Ask, tiny_model: Path, tmp_path: Path
) -> None:
    companies = ["Miller & Sons LLP", "Sunrise Dental Group", "Quantum Software"]
    questions = [PROMPT.format(company=company) for company in companies]
    pq.write_table(pa.table({"company": companies}), tmp_path / "in.parquet")
    result = ask(
        input_path=f"{tmp_path}/in.parquet", prompt=PROMPT, model_source=str(tiny_model), poll_interval=1.0,
        adapter=str(in_own_process(forcing_adapter, tmp_path / "retail", tiny_model, "Retail", questions)),
        sampling_params={"temperature": 0, "max_tokens": 8},
        engine_kwargs={"max_model_len": 256, "speculative_config": "ngram"},
    )  # fmt: skip
    answers = pq.read_table(result["output_path"], partitioning=None).column("answer").to_pylist()
    assert [answer[:6] for answer in answers] == ["Retail"] * 3
