"""Labels by a real engine: compared in one token, they are those that a grammar has it write."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.customers import LABELS, industry_of, write_customers
from tests.support.slices import WARM_ENGINE, Ask

pytestmark = pytest.mark.warm_engine

#: One is the beginning of two others, which begin alike.
MANY = [*LABELS, f"{LABELS[0]} (small)", f"{LABELS[0]} (large)"]
TOO_LONG = 77


@pytest.fixture
def companies(tmp_path: Path) -> list[str]:
    (path,) = write_customers(tmp_path / "customers", ["2026-01-01"], 200)
    with open(path, newline="") as file:
        names = [row["Company"] for row in csv.DictReader(file)]
    rows = [name if i != TOO_LONG else "far too long " * 500 for i, name in enumerate(names)]
    pq.write_table(pa.table({"company": rows}), tmp_path / "in.parquet")
    return [name for i, name in enumerate(names) if i != TOO_LONG]


def test_compared_labels_are_those_that_the_model_writes_and_say_how_sure_it_is(
    ask: Ask, tiny_model: Path, companies: list[str], tmp_path: Path
) -> None:
    def infer(name: str, **arguments: Any) -> tuple[pa.Table, dict[str, Any]]:
        result = ask(
            input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/{name}",
            prompt="What industry is this company in: {company}", model_source=str(tiny_model),
            output_column="industry", engine_kwargs=WARM_ENGINE, poll_interval=1.0,
            sampling_params={"temperature": 0}, **arguments,
        )  # fmt: skip
        assert (result["counts"]["succeeded"], result["counts"]["quarantined"]) == (199, 1)
        return pq.read_table(result["output_path"], partitioning=None), result

    compared, result = infer("compared", choices=list(LABELS), label_confidence=True)
    assert result["tokens"]["output"] == 199
    labels = compared.column("industry").to_pylist()
    assert sum(label == industry_of(c) for label, c in zip(labels, companies, strict=True)) >= 190
    written, exact = infer("written", choices=list(LABELS), exact_labels=True)
    assert written.column("industry").to_pylist() == labels
    assert exact["tokens"]["output"] > 1.5 * 199
    assert [f.name for f in written.schema] == ["company", "industry"]

    assert {str(f.type) for f in list(compared.schema)[2:]} == {"float", "string"}
    for row in compared.to_pylist():
        first, second = row["industry_probability"], row["industry_runner_up_probability"]
        assert second <= first
        assert 1 / len(LABELS) <= first
        assert first + second < 1 + 1e-6
        assert row["industry_runner_up"] in set(LABELS) - {row["industry"]}
        assert 0 <= row["industry_entropy"] <= math.log2(len(LABELS))

    # Labels that others begin with take a request for each place where they branch.
    many, result = infer("many", choices=MANY, label_confidence=True)
    assert result["tokens"]["output"] > 199
    assert set(many.column("industry").to_pylist()) <= set(MANY)
    assert all(0 < p <= 1 for p in many.column("industry_probability").to_pylist())
