"""The engine that docs/architecture.md shows: its text, shipped as users ship theirs, answers a slice."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from tests.support.paths import ROOT
from tests.support.slices import Ask

PAGE = ROOT / "docs" / "architecture.md"
NAMES = [*(f"{kind} No. {i}" for i in range(60) for kind in ("Smith Law", "Dental Clinic")), "Acme"]


@pytest.fixture
def keywords(tmp_path: Path) -> Path:
    found = re.search(r"^## A new engine$.*?^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert found
    assert len(found[1].splitlines()) <= 45
    file = tmp_path / "keywords.py"
    file.write_text(found[1])
    return file


def test_engine_of_the_docs_answers_a_slice(ask: Ask, keywords: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": NAMES}), tmp_path / "in.parquet")
    arguments = {
        "engine": "keywords:Keywords", "code_paths": [str(keywords)], "model_source": "keywords",
        "input_path": f"{tmp_path}/in.parquet", "choices": ["Law", "Dental"], "poll_interval": 1.0,
    }  # fmt: skip
    result = ask(**arguments)
    counts = result["counts"]
    assert (counts["succeeded"], counts["quarantined"]) == (len(NAMES) - 1, 1)
    rows = pq.read_table(result["output_path"], partitioning=None).to_pylist()
    assert [row["name"] for row in rows] == NAMES[:-1]
    assert all(row["answer"] in row["name"] for row in rows)
    [failed] = pq.read_table(tmp_path / "out.quarantine").to_pylist()
    assert (failed["name"], failed["__error_type"]) == ("Acme", "NoKeyword")

    # Its code is part of the question.
    keywords.write_text(keywords.read_text().replace("NoKeyword", "Nothing"))
    with pytest.raises(RayLLMInputError, match="on_config_change"):
        ask(**arguments)
