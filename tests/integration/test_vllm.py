"""What only a real engine shows: structured outputs and parameters of a row's own, through both ways to feed
vLLM."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayModelNotFoundError
from airflow_provider_raydatallm.processor.engines.load_engine import load_engine
from demo.customers import LABELS, industry_of, write_customers
from tests.support.engine_processes import assert_pauses, engine_processes
from tests.support.in_process import job_of
from tests.support.marks import long
from tests.support.slices import Ask
from tests.support.waiting import in_thread, wait_for

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


_ASK = """
def ask(row):
    if row["n"] == 5:
        return {"messages": []}  # nothing that a chat template could end with
    text = row["company"] if row["n"] != 77 else "far too long " * 500
    sampling = {"max_tokens": 2 if row["n"] >= 190 else 40}
    if row["n"] % 2:
        sampling["logit_bias"] = {HIGH: 100}
    return {
        "messages": [
            {"role": "system", "content": "You infer a company's industry."},
            {"role": "user", "content": "What industry is this company in: " + text},
        ],
        "sampling_params": sampling,
    }
"""


@pytest.mark.parametrize(
    ("engine", "options", "limit", "says", "refused", "cut"),
    [
        # What 99 of 100 rows need, in steps of 64. By a warm engine, `one_engine/test_hostile_rows.py`.
        long("vllm", None, "auto", "128", "ValueError", "TruncatedAnswer"),
        ("auto", {"preprocess_map_kwargs": {"num_cpus": 0.5}}, 256, "256", "IndexError", "InvalidOutput"),
    ],
)
def test_schema_is_followed_and_rows_that_fail_in_any_stage_stop_no_other(
    ask: Ask, tiny_model: Path, companies: list[str], tmp_path: Path, engine: str,
    options: dict[str, Any] | None, limit: int | str, says: str, refused: str, cut: str,
) -> None:  # fmt: skip
    rows = [{"company": c, "n": n} for n, c in enumerate(companies)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    vocabulary = json.loads((tiny_model / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "asking.py").write_text(f"HIGH = {vocabulary['high']}\n{_ASK}")
    results: list[Any] = []
    thread = in_thread(
        ask, results, engine=engine, input_path=f"{tmp_path}/in.jsonl", prompt=None, preprocess="asking:ask",
        code_paths=[str(tmp_path / "asking.py")], output_schema=SCHEMA,
        sampling_params={"temperature": 0, "max_tokens": 40, "logit_bias": {vocabulary["low"]: 100}},
        output_column="found",
        model_source=str(tiny_model), engine__kwargs={"max_model_len": limit}, engine__processor=options,
        engine__blocks=10, poll_interval=1.0,
    )  # fmt: skip
    if options is not None:  # the other engine's processes are looked at in tests of their own
        [engine_core] = wait_for(lambda: engine_processes("MapWorker"))
        assert_pauses(engine_core)
    thread.join(400)
    [result] = results
    assert isinstance(result, dict), result
    folder = Path(result["output_path"])
    table = pq.read_table(folder, partitioning=None)
    assert table.schema.field("found").type == pa.struct(
        [("industry", pa.string()), ("confidence", pa.string())]
    )
    # The last rows may not say enough for the schema: their answers are cut.
    failed = [5, 77, *range(190, 200)]
    assert table.column("n").to_pylist() == [n for n in range(200) if n not in failed]
    found = table.column("found").to_pylist()
    right = sum(
        f["industry"] == industry_of(companies[n])
        for f, n in zip(found, table.column("n").to_pylist(), strict=True)
    )
    assert right >= 150
    assert [f["confidence"] for f in found] == ["high" if n % 2 else "low" for n in table["n"].to_pylist()]
    counts = result["counts"]
    assert (counts["succeeded"], counts["quarantined"], counts["invalid_output"]) == (188, 12, 10)
    why = {
        r["n"]: (r["__error_type"], r["__error"])
        for r in pq.read_table(tmp_path / "out.quarantine").to_pylist()
    }
    assert sorted(why) == failed
    assert (why[5][0], why[5][1].partition(":")[0]) == (refused, refused)
    assert says in why[77][1]
    assert why[190][0] == cut
    assert why[77][0] == "PromptTooLong"
    # Ray Data LLM does not tell.
    assert (counts["truncated"], result["advice"]) == (
        (10, ["answers_cut"]) if options is None else (None, [])
    )


@pytest.mark.parametrize(("options", "says"), [
    ({"tokenise_stage": {}}, r"'tokenise_stage'\] is not one of .*tokenize_stage"),
    ({"batch_size": 1}, r"'batch_size'\] is set by another argument"),
])  # fmt: skip
def test_options_that_ray_data_llm_does_not_have_or_other_arguments_set_are_refused(
    options: dict[str, Any], says: str
) -> None:
    engine = {"kind": "auto", "kwargs": {"max_model_len": 64}, "processor": options}
    job = job_of(input_path="/in", output_path="/out", engine=engine)
    with pytest.raises(SliceError, match=says):
        load_engine(job)(job, 100)


@pytest.mark.long
def test_engine_that_cannot_start_says_why(
    ask: Ask, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    with pytest.raises(RayLLMInputError, match=r"^ModelConfig: Value error, User-specified max_model_len"):
        ask(
            input_path=f"{tmp_path}/in.parquet", model_source=str(tiny_model), poll_interval=1.0,
            engine__kwargs={"max_model_len": 10_000_000},
        )  # fmt: skip
    task_log = caplog.text + "".join(capfd.readouterr())
    _, _, folded = task_log.partition("::group::The end of the Ray job's log")
    folded, _, _ = folded.partition("::endgroup::")
    assert "User-specified max_model_len" in folded
    assert "Resolved architecture" not in task_log  # vLLM's, which explains nothing
    assert len(folded.splitlines()) < 50


@pytest.mark.long
def test_model_without_weights_is_told_by_what_vllm_left_in_its_log(
    ask: Ask, tiny_model: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(RayModelNotFoundError, match=r"^RuntimeError: Cannot find any model weights with"):
        ask(
            input_path=f"{tmp_path}/in.parquet", model_source=f"{tmp_path}/model", poll_interval=1.0,
            engine__kwargs={"max_model_len": 256}, engine__scope="slice",
        )  # fmt: skip
