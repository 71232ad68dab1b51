"""One row of twenty is hostile, of every kind: each is in quarantine with its reason, and all others are
published."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from demo.customers import LABELS, industry_of, write_customers
from tests.support.hostile import CELLS, Cell, spread, texts
from tests.support.slices import WARM_ENGINE, Ask

#: The rule on top is one that the engine cannot keep to.
SCHEMA = {
    "type": "object",
    "properties": {"industry": {"enum": list(LABELS)}, "confidence": {"enum": ["high", "low"]}},
    "required": ["industry", "confidence"],
    "additionalProperties": False,
    "not": {"properties": {"industry": {"const": "Law Firm"}}},
}
#: What the functions below do for a row of this kind, and its error type.
IN_CODE = (
    Cell("preprocess raises", b"a", "ZeroDivisionError"),
    Cell("no request", b"a", "InvalidRequest"),
    Cell("half a character", b"a", "UnicodeEncodeError"),
    Cell("negative temperature", b"a", "InvalidSamplingParams"),
    Cell("text for a number", b"a", "InvalidSamplingParams"),
    Cell("unknown parameter", b"a", "InvalidSamplingParams"),
    Cell("cut", b"a", "TruncatedAnswer"),
    Cell("invalid", b"Smith & Miller Law LLP", "InvalidOutput"),
    Cell("postprocess raises", b"a", "KeyError"),
    Cell("postprocess returns what no column holds", b"a", "TypeMismatch"),
)
_CODE = """
def ask(row):
    sampling = {"temperature": 0.5, "seed": row["n"], "max_tokens": 40}
    # Longer ones are cut by the end of an engine's step, and go on in its next one.
    before = "Think. " * (row["n"] % 2 * 25)
    match row["kind"]:
        case "preprocess raises":
            1 / 0
        case "no request":
            return 7
        case "half a character":
            return "half \\ud800"
        case "negative temperature":
            sampling["temperature"] = -1
        case "text for a number":
            sampling["top_p"] = "most"
        case "unknown parameter":
            sampling["no_such_parameter"] = 1
        case "cut":
            sampling["max_tokens"] = 2
        case "invalid":
            sampling["temperature"], before = 0, ""
    prompt = f"What industry is this company in: {row['company']}"
    return {"prompt": before + prompt, "sampling_params": sampling}

def shape(row):
    match row["kind"]:
        case "postprocess raises":
            row["no such column"]
        case "postprocess returns what no column holds":
            return {"industry": 10**30}
    return row["found"]
"""


def write(folder: Path, cells: list[Cell | None]) -> list[str | None]:
    """Writes rows, and returns the companies of those that are not hostile."""
    (path,) = write_customers(folder / "customers", ["2026-01-01"], 3 * len(cells))
    with open(path, newline="") as file:
        companies = [row["Company"] for row in csv.DictReader(file)]
    others = [name for name in companies if industry_of(name) != "Law Firm"]
    names = [others[i] if cell is None else None for i, cell in enumerate(cells)]
    of_rows = [cell.text if cell else str(name).encode() for cell, name in zip(cells, names, strict=True)]
    table = pa.table({
        "n": range(len(cells)), "kind": [cell and cell.kind for cell in cells], "company": texts(of_rows),
    })  # fmt: skip
    pq.write_table(table, folder / "in.parquet")
    return names


def failures(folder: Path) -> dict[int, tuple[str, str]]:
    rows = pq.read_table(folder, columns=["n", "__error_type", "__error"], partitioning=None).to_pylist()
    return {row["n"]: (row["__error_type"], row["__error"]) for row in rows}


def test_hostile_rows_of_records_stop_no_other(ask: Ask, tiny_model: Path, tmp_path: Path) -> None:
    """All have a seed of their own, and some a prompt that goes on in the engine's next step."""
    cells = spread([*CELLS, *IN_CODE], 20 * len(CELLS + IN_CODE))
    write(tmp_path, cells)
    (tmp_path / "mine.py").write_text(_CODE)
    result = ask(
        input_path=f"{tmp_path}/in.parquet", prompt=None, preprocess="mine:ask", postprocess="mine:shape",
        code_paths=[str(tmp_path / "mine.py")], output_schema=SCHEMA, output_column="found",
        sampling_params={"temperature": 0, "seed": 0, "max_tokens": 40, "top_p": 1.0},
        model_source=str(tiny_model), engine__kwargs=WARM_ENGINE, poll_interval=1.0,
    )  # fmt: skip
    failed = failures(tmp_path / "out.quarantine")
    hostile = {n: cell for n, cell in enumerate(cells) if cell is not None}
    kinds = {cell.kind: failed.get(n, (None, ""))[0] for n, cell in hostile.items()}
    assert kinds == {cell.kind: cell.fails_as for cell in hostile.values()}
    others = {n: why for n, why in failed.items() if n not in hostile}
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.column("n").to_pylist() == [n for n in range(len(cells)) if n not in failed]
    parameters = [why for kind, why in failed.values() if kind == "InvalidSamplingParams"]
    for name, why in zip(["temperature", "top_p", "no_such_parameter"], parameters, strict=True):
        assert re.match(f".*sampling_params .*{name}", why)
    # The rule is a rule for all rows.
    assert {kind for kind, _ in others.values()} <= {"InvalidOutput"}
    assert len(others) < 0.02 * len(cells)
    assert "Law Firm" not in published.column("industry").to_pylist()


def test_hostile_rows_of_labels_stop_no_other(ask: Ask, tiny_model: Path, tmp_path: Path) -> None:
    cells = spread(list(CELLS), 20 * len(CELLS))
    companies = write(tmp_path, cells)
    result = ask(
        input_path=f"{tmp_path}/in.parquet", prompt="What industry is this company in: {company}",
        choices=list(LABELS), labels__confidence=True, sampling_params={"temperature": 0},
        model_source=str(tiny_model), engine__kwargs=WARM_ENGINE, poll_interval=1.0,
    )  # fmt: skip
    failed = failures(tmp_path / "out.quarantine")
    wanted = {n: cell.fails_as for n, cell in enumerate(cells) if cell and cell.fails_as}
    assert {n: why for n, (why, _) in failed.items()} == wanted
    rows = pq.read_table(result["output_path"], columns=["n", "answer"], partitioning=None).to_pylist()
    assert [row["n"] for row in rows] == [n for n in range(len(cells)) if n not in failed]
    right = [row["answer"] == industry_of(name) for row in rows if (name := companies[row["n"]]) is not None]
    assert sum(right) >= 0.9 * len(right)
