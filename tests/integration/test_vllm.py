"""What only a real engine shows: structured outputs and parameters of a row's own, through Ray Data LLM and
vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.exceptions import RayLLMJobError
from demo.customers import LABELS, industry_of, write_customers
from tests.integration.conftest import Ask

SCHEMA = {
    "type": "object",
    "properties": {"industry": {"enum": list(LABELS)}, "confidence": {"enum": ["high", "low"]}},
    "required": ["industry", "confidence"],
    "additionalProperties": False,
}


@pytest.fixture
def companies(tmp_path: Path) -> list[str]:
    import csv

    (path,) = write_customers(tmp_path / "customers", ["2026-01-01"], 200)
    with open(path, newline="") as f:
        return [row["Company"] for row in csv.DictReader(f)]


def test_schema_is_followed_and_a_row_may_have_its_own_budget(
    ask: Ask, tiny_model: Path, companies: list[str], tmp_path: Path
) -> None:
    # The last rows may not say enough for the schema: their answers are cut, null, and counted.
    rows = [{"company": c, "budget": 40 if i < 190 else 2} for i, c in enumerate(companies)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result: dict[str, Any] = ask(
        input_path=f"{tmp_path}/in.jsonl",
        prompt="What industry is this company in: {company}",
        system_prompt="You infer a company's industry.",
        output_schema=SCHEMA,
        sampling_params={"temperature": 0, "max_tokens": "{budget}"},
        output_column="found",
        model_source=str(tiny_model),
        engine_kwargs={"max_model_len": 256},
        poll_interval=1.0,
    )
    table = pq.read_table(Path(result["output_path"]) / "part-00000.parquet")
    assert table.schema.field("found").type == pa.struct(
        [("industry", pa.string()), ("confidence", pa.string())]
    )
    found = table.column("found").to_pylist()
    assert [f is None for f in found] == [False] * 190 + [True] * 10
    assert result["counts"]["invalid_output"] == 10
    assert sum(f["industry"] == industry_of(c) for f, c in zip(found[:190], companies, strict=False)) >= 150
    assert {f["confidence"] for f in found[:190]} <= {"high", "low"}


def test_engine_that_cannot_start_says_why(ask: Ask, tiny_model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    with pytest.raises(RayLLMJobError, match="max_model_len"):
        ask(
            input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model), poll_interval=1.0,
            engine_kwargs={"max_model_len": 10_000_000},
        )  # fmt: skip
