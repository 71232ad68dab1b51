"""What a model thinks before it answers: by a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.slices import Ask
from tests.support.thinking_model import make_thinking

QUESTION = "What industry is this company in: {}"
#: Tokens that a thought may take.
BUDGET = 4


@pytest.mark.long
def test_thoughts_are_limited_and_have_a_column_of_their_own(
    ask: Ask, run_example: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    companies = ["Acme Bank", "Acme Law", "Acme Steel", "Acme Farm"]
    # The last row thinks for longer than it has tokens.
    rows = pa.table({"Company": companies, "budget": [BUDGET] * 3 + [40]})
    (tmp_path / "in" / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(rows, tmp_path / "in" / "ds=2026-01-01" / "in.parquet")
    model = make_thinking(tiny_model, tmp_path / "thinking")
    table = run_example(
        "customers_reasoned", RAY_LLM_DEMO_INPUT=tmp_path / "in", RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_THINKER=model,
    )  # fmt: skip
    published = pq.read_table(table / "ds=2026-01-01", partitioning=None)
    assert published.column_names == ["Company", "budget", "industry", "industry_reasoning"]
    assert published.column("Company").to_pylist() == companies
    for row in published.to_pylist():
        assert row["industry"] in {"Law Firm", "Healthcare", "Technology", "Retail", "Finance", "Other"}
        assert row["industry_reasoning"]
        assert "think>" not in row["industry_reasoning"]
    report = json.loads(next(table.with_name("out_reasoned.ray_llm").rglob("report*.json")).read_text())
    assert report["tokens"]["reasoning"] == len(companies) * (256 + 1)  # the mark counts
    assert report["tokens"]["output"] > report["tokens"]["reasoning"]

    drawn = ask(
        output_path=f"{tmp_path}/texts", input_path=f"{tmp_path}/in/ds=2026-01-01/",
        prompt=QUESTION.format("{Company}"), model_source=str(model), reasoning_parser="deepseek_r1",
        sampling_params={"n": 2, "temperature": 2, "max_tokens": 20, "thinking_token_budget": "{budget}"},
        engine__kwargs={"max_model_len": 1024}, quality__max_quarantine=0.5, poll_interval=1.0,
    )  # fmt: skip
    texts = pq.read_table(drawn["output_path"], partitioning=None)
    assert {str(texts.schema.field(name).type) for name in ("answer", "answer_reasoning")} == {
        "list<element: string>"
    }
    drafts = texts.to_pylist()
    assert [row["Company"] for row in drafts] == companies[:3]
    assert all(len(row["answer"]) == len(row["answer_reasoning"]) == 2 for row in drafts)
    assert any(row["answer"][0] != row["answer"][1] for row in drafts)
    # The row that was cut while it thought counts, too.
    assert drawn["tokens"]["reasoning"] == 2 * (3 * (BUDGET + 1) + 20)
    [failed] = pq.read_table(tmp_path / "texts.quarantine").to_pylist()
    assert (failed["Company"], failed["__error_type"]) == ("Acme Farm", "TruncatedAnswer")
