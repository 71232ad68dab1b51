"""What only the provider's own vLLM engine does: rows are safe as they finish, whatever dies then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.ray import RayHook
from tests.support.engine_processes import assert_pauses, engine_processes
from tests.support.paths import ROOT
from tests.support.slices import WARM_ENGINE, Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

#: Tokens of the rows that are held.
LONG = 40


@pytest.mark.long
def test_only_unfinished_rows_of_a_batch_run_again_whether_the_job_or_the_engine_dies(
    ask: Ask, tiny_model: Path, tmp_path: Path, submitted: list[str]
) -> None:
    tokens = [4, LONG, 4, LONG, 4]
    pq.write_table(pa.table({"name": [*"abcde"], "tokens": tokens}), tmp_path / "in.parquet")
    arguments: dict[str, Any] = {
        "input_path": f"{tmp_path}/in.parquet",
        "engine": "counting_engine:CountingEngine",
        "code_paths": [str(ROOT / "tests" / "support" / "counting_engine.py")],
        "model_source": str(tiny_model),
        "sampling_params": {"temperature": 0, "ignore_eos": True, "max_tokens": "{tokens}"},
        # What a held row may come to takes the tiny model minutes.
        "engine__kwargs": {"max_model_len": 65536, "hf_overrides": {"max_position_embeddings": 65536}},
        "poll_interval": 1.0,
    }
    calls, hold = tmp_path / "out.calls", tmp_path / "out.hold"
    hold.write_text(str(LONG))
    results: list[Any] = []
    thread = in_thread(ask, results, **arguments)
    wait_for(lambda: rows_in(fragments(tmp_path / "out")) == 3)
    assert engine_processes()
    RayHook("ray_default").call(jobs_api.stop(submitted[0]))
    thread.join(300)
    assert "was told to stop" in str(results.pop())
    wait_for(lambda: not engine_processes())  # a stopped job leaves no engine behind

    thread = in_thread(ask, results, **arguments)
    wait_for(lambda: calls.read_text().split() == ["5", "2"])
    [engine] = engine_processes()
    assert_pauses(engine)
    engine.kill()
    wait_for(lambda: calls.read_text().split() == ["5", "2", "2"])
    [engine] = engine_processes()
    [worker] = [p for p in engine.parents() if "CountingWorker" in p.name()]
    hold.unlink()
    worker.kill()
    wait_for(lambda: not engine.is_running())  # which holds the GPU
    thread.join(300)
    [result] = results
    assert calls.read_text().split() == ["5", "2", "2", "2"]
    counts = result["counts"]
    assert (counts["succeeded"], counts["resumed"], counts["truncated"]) == (5, 3, 5)
    assert (result["tokens"]["output"], result["tokens"]["cached"] >= 0) == (sum(tokens), True)
    assert pq.read_table(result["output_path"], partitioning=None).num_rows == 5
    assert result["balance"]["workers"] == 1  # an actor that Ray started again is the same worker
    wait_for(lambda: not engine_processes())


@pytest.mark.long
def test_rows_that_ask_the_same_are_answered_once_and_each_has_its_own_columns(
    ask: Ask, tiny_model: Path, tmp_path: Path
) -> None:
    names = [f"n{i % 40}" for i in range(400)]
    pq.write_table(pa.table({"name": names, "i": range(400)}), tmp_path / "in.parquet", row_group_size=50)
    (tmp_path / "mine.py").write_text(
        "def ask(row):\n    return f'Who is {row[\"name\"]}?'\n"
        "def shape(row):\n    return {'answer': row['answer'], 'mine': row['i'] + 1}\n"
    )
    result = ask(
        input_path=f"{tmp_path}/in.parquet", code_paths=[str(tmp_path / "mine.py")],
        model_source=str(tiny_model), sampling_params={"temperature": 0, "max_tokens": 8},
        engine__kwargs=WARM_ENGINE, prompt=None,
        preprocess="mine:ask", postprocess="mine:shape", engine__batch_size=16, poll_interval=1.0,
    )  # fmt: skip
    assert (result["counts"]["succeeded"], result["counts"]["deduplicated"]) == (400, 360)
    assert result["tokens"]["output"] <= 40 * 8
    table = pq.read_table(result["output_path"], partitioning=None)
    assert table.column("mine").to_pylist() == [i + 1 for i in range(400)]
    by_name: dict[str, set[str]] = {}
    for name, answer in zip(names, table.column("answer").to_pylist(), strict=True):
        by_name.setdefault(name, set()).add(answer)
    assert all(len(said) == 1 for said in by_name.values())
