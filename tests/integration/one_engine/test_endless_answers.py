"""JSON answers end, and hold no free whitespace; one that repeats itself costs its own row only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from demo.customers import LABELS
from tests.support.slices import WARM_ENGINE, Ask

COMPANIES = ["Smith & Miller Law LLP", "Green Valley Clinic", "Blue Software Inc", "Corner Store Ltd"]
ROWS, MAX_TOKENS = 24, 200


def record(**properties: object) -> dict[str, object]:
    return {
        "type": "object", "properties": properties, "required": [*properties], "additionalProperties": False
    }  # fmt: skip


SCHEMA = record(
    # Room for endless repetition, and none for a model that does not know what to write.
    note={"type": "string", "maxLength": 170},
    found=record(industry={"enum": [*LABELS]}, sure={"enum": ["high", "low"]}),
    codes={"type": "array", "items": {"type": "integer", "maximum": 99}, "minItems": 2, "maxItems": 3},
)
_CODE = """
def ask(row):
    bias = {"logit_bias": {row["token"]: 100}} if row["token"] is not None else {}
    return {"prompt": "What industry is this company in: " + row["company"], "sampling_params": bias}
"""


def test_answers_are_compact_and_one_that_repeats_itself_ends(
    ask: Ask, tiny_model: Path, tmp_path: Path
) -> None:
    token = Tokenizer.from_file(f"{tiny_model}/tokenizer.json").token_to_id("a")
    repeats = [n % 4 == 3 for n in range(ROWS)]
    table = pa.table({
        "n": range(ROWS), "company": [COMPANIES[n % 4] for n in range(ROWS)],
        "token": [token if repeating else None for repeating in repeats],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    (tmp_path / "mine.py").write_text(_CODE)
    result = ask(
        input_path=f"{tmp_path}/in.parquet", prompt=None, preprocess="mine:ask",
        code_paths=[str(tmp_path / "mine.py")], output_schema=SCHEMA, output_mode="json",
        output_column="found", sampling_params={"temperature": 0, "max_tokens": MAX_TOKENS},
        model_source=str(tiny_model), engine__kwargs=WARM_ENGINE, engine__deduplicate=False,
        quality__max_quarantine=0.5, poll_interval=1.0,
    )  # fmt: skip
    failed = pq.read_table(tmp_path / "out.quarantine", partitioning=None)
    assert set(failed.column("__error_type").to_pylist()) == {"DegenerateAnswer"}
    assert failed.column("n").to_pylist() == [n for n in range(ROWS) if repeats[n]]
    # Of the 170 that the schema permits.
    assert all('"' + "a" * 144 + "'" in error for error in failed.column("__error").to_pylist())
    counts = result["counts"]
    assert (counts["degenerate"], counts["truncated"]) == (sum(repeats), 0)
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.column("n").to_pylist() == [n for n in range(ROWS) if not repeats[n]]
    for text in published.column("found").to_pylist():
        jsonschema.validate(json.loads(text), SCHEMA)
        between_strings = re.sub(r'"(\\.|[^"\\])*"', '""', text)
        assert not re.search(r"(?<![,:])\s|\s\s", between_strings)
