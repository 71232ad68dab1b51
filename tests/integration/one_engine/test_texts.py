"""Texts by a real engine: free ones, those of a form, and records, by their example DAGs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.customers import industry_of, write_customers

ROWS = 60


def column(table: Path, name: str) -> list[str]:
    values: list[str] = pq.read_table(table / "ds=2026-01-01", partitioning=None).column(name).to_pylist()
    return values


@pytest.fixture
def environment(tiny_model: Path, tmp_path: Path) -> dict[str, Path]:
    """Of the examples, for customers of one day."""
    write_customers(tmp_path / "in", ["2026-01-01"], ROWS)
    return {
        "RAY_LLM_DEMO_INPUT": tmp_path / "in", "RAY_LLM_DEMO_OUTPUT": tmp_path / "out",
        "RAY_LLM_DEMO_MODEL": tiny_model,
    }  # fmt: skip


@pytest.mark.long
def test_free_texts_are_written(run_example: Callable[..., Path], environment: dict[str, Path]) -> None:
    lines = run_example("customers_texts", **environment)
    assert len(set(column(lines, "line"))) > 1
    report = json.loads(next(lines.with_name("out_lines.ray_llm").rglob("report*.json")).read_text())
    assert report["counts"] | {"succeeded": ROWS, "quarantined": 0, "uncounted": 0} == report["counts"]
    assert ROWS < report["tokens"]["output"] <= 32 * ROWS


def test_texts_of_a_form_have_it(
    run_example: Callable[..., Path], environment: dict[str, Path], tmp_path: Path
) -> None:
    founded = run_example("customers_patterns", **environment)
    years = column(founded, "founded")
    assert len(years) == ROWS
    assert all(re.fullmatch("(about |before )?(19|20)[0-9]{2}", year) for year in years)
    ratings = column(tmp_path / "out_rating", "rating")
    assert len(ratings) >= 0.9 * ROWS  # brackets may open without end
    value = r"(not \()*(large|small|old|new)\)*"
    for rating in ratings:
        assert re.fullmatch(f"{value}( and {value})?", rating)
        assert rating.count("(") == rating.count(")")


@pytest.mark.long
def test_record_is_published_as_a_column_for_each_of_its_fields(
    run_example: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    industries = {"Law Firm", "Healthcare", "Technology", "Retail", "Finance"}
    (customers,) = write_customers(tmp_path / "customers", ["2026-01-01"], 2 * ROWS)
    with open(customers, newline="") as file:
        companies = [row["Company"] for row in csv.DictReader(file)]
    known = [name for name in companies if industry_of(name) in industries]
    (tmp_path / "in" / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(pa.table({"Company": known}), tmp_path / "in" / "ds=2026-01-01" / "in.parquet")
    table = run_example(
        "customers_columns", RAY_LLM_DEMO_INPUT=tmp_path / "in", RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_DEMO_MODEL=tiny_model,
    )  # fmt: skip
    rows = pq.read_table(table / "ds=2026-01-01", partitioning=None).to_pylist()
    assert set(rows[0]) == {"Company", "industry", "second_industry", "confidence"}
    assert len(rows) >= 0.98 * len(known)
    assert sum(row["industry"] == industry_of(row["Company"]) for row in rows) >= 0.8 * len(rows)
