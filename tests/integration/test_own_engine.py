"""The engine that docs/architecture.md shows answers a slice, by its example DAG."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
ENGINE = ROOT / "dags" / "engines" / "keywords.py"
NAMES = [*(f"{kind} No. {i}" for i in range(60) for kind in ("Smith Law", "Dental Clinic")), "Acme"]


def test_engine_of_the_docs_is_that_of_the_example() -> None:
    shown = re.search(r"^## A new engine$.*?^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert shown
    assert shown[1] == ENGINE.read_text("utf-8")
    assert len(shown[1].splitlines()) <= 45


def test_own_engine_answers_a_slice(run_example: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "in" / "ds=2026-01-01"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"Company": NAMES}), folder / "in.parquet")
    out = tmp_path / "out"
    table = run_example(
        "customers_keywords", RAY_LLM_DEMO_INPUT=tmp_path / "in", RAY_LLM_DEMO_OUTPUT=out
    )  # fmt: skip
    rows = pq.read_table(table / folder.name, partitioning=None).to_pylist()
    assert [row["Company"] for row in rows] == NAMES[:-1]
    assert all(row["industry"] in row["Company"] for row in rows)
    [failed] = pq.read_table(f"{table}.quarantine").to_pylist()
    assert (failed["Company"], failed["__error_type"]) == ("Acme", "NoKeyword")
