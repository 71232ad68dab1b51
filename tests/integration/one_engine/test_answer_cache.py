"""Slices that have answers from each other, by real engines."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.customers import LABELS, industry_of, write_customers
from tests.support.slices import WARM_ENGINE, Ask


@pytest.mark.parametrize("other_scope", ["shared", pytest.param("slice", marks=pytest.mark.long)])
def test_what_another_slice_asked_is_not_inferred_again_by_either_kind_of_engine(
    ask: Ask, tiny_model: Path, tmp_path: Path, other_scope: str
) -> None:
    def answered(key: str, asked: list[int], scope: str) -> tuple[dict[str, Any], dict[str, set[str]]]:
        """The report, and what was said to each name."""
        names = [f"n{i}" for i in asked]
        pq.write_table(pa.table({"name": names}), tmp_path / f"{key}.parquet")
        result = ask(
            slice_key=key, input_path=f"{tmp_path}/{key}.parquet", model_source=str(tiny_model),
            engine="vllm", engine__scope=scope, engine__kwargs=WARM_ENGINE,
            sampling_params={"temperature": 0, "max_tokens": 8}, engine__cache=f"{tmp_path}/kept",
            poll_interval=1.0,
        )  # fmt: skip
        table = pq.read_table(result["output_path"], partitioning=None)
        assert table.column("name").to_pylist() == names
        said: dict[str, set[str]] = {}
        for name, answer in zip(names, table.column("answer").to_pylist(), strict=True):
            said.setdefault(name, set()).add(answer)
        return result, said

    def counted(result: dict[str, Any]) -> Counter[str]:
        return Counter({n: result["counts"][n] for n in ("succeeded", "deduplicated", "cached")})

    first, said = answered("2026-01-01", [*range(40), *range(20)], "shared")
    assert counted(first) == {"succeeded": 60, "deduplicated": 20, "cached": 0}
    assert first["tokens"]["saved"] == 0
    each = first["tokens"]["input"] / 40

    second, later = answered("2026-01-02", [*range(20, 60), *range(20, 25), *range(40, 44)], other_scope)
    assert counted(second) == {"succeeded": 49, "deduplicated": 4, "cached": 25}
    assert second["tokens"]["input"] < 30 * each  # of the 20 that nobody had asked
    assert second["tokens"]["saved"] > 25 * (each - 2)
    assert all(later[f"n{i}"] == said[f"n{i}"] for i in range(20, 40))

    third, last = answered("2026-01-03", [*range(60)], "shared")
    assert counted(third) == {"succeeded": 60, "deduplicated": 0, "cached": 60}
    assert (third["tokens"]["input"], third["seconds"]["inference"]) == (
        0,
        None,
    )  # nobody waits for an engine
    assert last == said | later
    assert len(list((tmp_path / "kept").iterdir())) == 1  # whatever their scopes, the engines are alike


@pytest.mark.long
def test_corrected_answers_are_cached_and_invalid_ones_are_asked_for_again(
    ask: Ask, tiny_model: Path, tmp_path: Path
) -> None:
    """Half of the companies are of an industry that the schema refuses, which the engine cannot."""
    (customers,) = write_customers(tmp_path / "customers", ["2026-01-01"], 600)
    with open(customers, newline="") as file:
        companies = [row["Company"] for row in csv.DictReader(file)]
    refused = [name for name in companies if industry_of(name) == "Law Firm"][:20]
    names = [*refused, *[name for name in companies if industry_of(name) != "Law Firm"][:20]]
    pq.write_table(pa.table({"company": names}), tmp_path / "in.parquet")
    industry = {"enum": list(LABELS), "not": {"const": "Law Firm"}}
    schema = {
        "type": "object", "properties": {"industry": industry}, "required": ["industry"],
        "additionalProperties": False,
    }  # fmt: skip

    def answered(key: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The report, and the answer of each company that has one."""
        result = ask(
            slice_key=key, input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model),
            prompt="What industry is this company in: {company}", output_schema=schema, quality__repair=1,
            engine__kwargs=WARM_ENGINE, engine__cache=f"{tmp_path}/kept", quality__max_quarantine=1.0,
            sampling_params={"temperature": 0, "max_tokens": 24}, poll_interval=1.0,
        )  # fmt: skip
        rows = pq.read_table(result["output_path"], partitioning=None).to_pylist()
        return result, {row["company"]: row["answer"]["industry"] for row in rows}

    first, answers = answered("2026-01-01")
    counts = first["counts"]
    assert counts["succeeded"] + counts["invalid_output"] == len(names)
    assert "Law Firm" not in answers.values()
    again, later = answered("2026-01-02")
    assert later.items() >= answers.items()
    assert (counts["cached"], again["counts"]["cached"]) == (0, len(answers))
    # Those without one were asked twice, in each slice.
    assert 0 < again["tokens"]["input"] < first["tokens"]["input"]
