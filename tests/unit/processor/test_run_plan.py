from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.fingerprint import answers_fingerprint
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor import run_plan
from airflow_provider_raydatallm.processor.__main__ import main
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.run_plan import RunPlan, as_json, as_table, plan_run
from airflow_provider_raydatallm.processor.sizing import facts
from airflow_provider_raydatallm.processor.sizing.checks import preflight_findings
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.versions import create_commit
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.llama import LLAMA_8B


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SliceJob:
    """10,000 rows, and a GPU build of vLLM as far as the engine can tell."""
    monkeypatch.setattr(
        "airflow_provider_raydatallm.processor.engines.vllm.engine_base.vllm_is_cpu_build", lambda kind: False
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    pq.write_table(pa.table({"name": [f"n{i}" for i in range(10_000)]}), tmp_path / "in.parquet")
    return job_of(
        input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", engine="auto",
        model_source=f"{tmp_path}/model", engine__workers=(1, 4), engine__kwargs={"max_model_len": 4096},
    )  # fmt: skip


def test_plan_tells_everything_without_running(job: SliceJob, tmp_path: Path) -> None:
    cluster = facts.ClusterFacts({"CPU": 32, "GPU": 4, "accelerator_type:H100": 1}, {}, 4, 80_000_000_000)
    assert as_table(plan_run(job, cluster)).splitlines() == [
        f"slice          2026-01-31 -> {tmp_path}/out/ds=2026-01-31",
        "rows           10,000 in 1 unit(s) of 1 file(s)",
        "to answer      10,000",
        f"engine         VllmEngine, {tmp_path}/model",
        "needs at once  5 CPUs, 1 GPUs "
        "(1 engine worker(s) of 1 GPU(s), 2 actor(s) around them, 2 to read and write)",
        "cluster has    32 CPUs, 4 GPUs",
        "workers        1 to 4 (1 to 4 GPUs)",
        "in flight      2,048 rows a worker >= 1,024 that it runs at once; they travel in blocks of 313",
        "weights        16.1 GB",
        "cache          537 MB for a row of max_model_len 4,096 (131 KB a token)",
        "expected       unknown: no published slice of this table has the same fingerprint",
        "checks         no problems found",
    ]
    assert not (tmp_path / "out").exists()


def test_time_and_cost_are_drawn_from_the_newest_like_slice(job: SliceJob, tmp_path: Path) -> None:
    for key, rate, cached, hash_of_job in (
        ("2026-01-29", 50.0, None, answers_fingerprint(job)),
        ("2026-01-30", 400.0, 50, answers_fingerprint(job)),  # of which 200 were not asked
        ("2026-01-31a", 999.0, 100, answers_fingerprint(job)),  # and here none was
        ("2026-02-01", 999.0, 0, "another"),
    ):
        report: dict[str, Any] = {
            "slice_key": key, "fingerprint": hash_of_job, "throughput": {"rows_per_s": rate},
            "seconds": {"engine_start": 60.0}, "balance": {"workers": 2},
            "counts": {"planned": 100, "cached": cached}, "tokens": {}, "outcome": "published",
        }  # fmt: skip
        body = {
            "number": 1, "staged": "000001-0123abcd", "plan": "plans/plan-000001-0123abcd.json", "keep": 1,
            "files": [], "quarantine": [], "answers": hash_of_job, "report": report, "epoch": 1,
            "fingerprint": hash_of_job, "question": hash_of_job,
            "input": {"hash": "", "files": 0, "rows": 0},
        }  # fmt: skip
        assert create_commit(Store(changed(job, slice_key=key).paths.metadata), 1, body)
    damaged = Path(changed(job, slice_key="2026-01-31x").paths.metadata) / "commits" / "commit-000001.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no JSON")
    plan = plan_run(job, None)
    assert plan.seconds == 60 + 10_000 / (100 * 4)  # 100 rows/s for each of 4 workers
    text = as_table(plan, gpu_hour_price=3.6)
    assert "expected       85 s: 60 s to start, then 400 rows/s, by slice 2026-01-30" in text
    assert "cost           0.34: 4 GPU(s) at 3.6 an hour" in text
    assert as_json(plan, gpu_hour_price=3.6)["cost"] == pytest.approx(0.34)
    assert as_json(plan)["cost"] is None
    assert "cluster        none can be reached from here" in text


def test_cost_is_by_the_jobs_price_unless_the_command_has_another(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_plan, "reachable_cluster", lambda: None)
    monkeypatch.setattr(RunPlan, "seconds", 900.0)
    (tmp_path / "spec.json").write_text(changed(job, engine__gpu_hour_price=3.0).model_dump_json())
    for given, cost in ([], 3.0), (["--gpu-hour-price", "5"], 5.0):
        assert main(["plan", str(tmp_path / "spec.json"), "--json", *given]) == 0
        assert json.loads(capsys.readouterr().out)["cost"] == cost


def test_what_is_wrong_is_part_of_the_plan(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = changed(job, engine__kwargs={"tensor_parallel_size": 3})
    (tmp_path / "spec.json").write_text(wrong.model_dump_json())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody there
    assert main(["plan", str(tmp_path / "spec.json")]) == 1
    assert "error          tensor_parallel_size 3 does not divide" in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "spec.json"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["to_answer"], said["findings"][0]["code"]) == (10_000, "heads_not_divisible")
    assert said["failure"]["kind"] == said["findings"][0]["kind"]


def test_what_the_users_code_prints_is_not_in_the_result(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prints_much.py").write_text("print('imported')\ndef ask(row): return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    noisy = changed(job, prompt=None, preprocess="prints_much:ask")
    (tmp_path / "spec.json").write_text(noisy.model_dump_json())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody there
    main(["plan", str(tmp_path / "spec.json"), "--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["to_answer"] == 10_000
    assert "imported" in captured.err


def test_published_slice_has_nothing_to_do(job: SliceJob) -> None:
    stub = changed(job, engine="tests.support.stub_engine:StubEngine")
    run_in_process(stub, InProcess(batch=1000))
    said = "to do  nothing: version 1 is published, of this configuration and input: 10,000 rows"
    assert said in as_table(plan_run(stub, None))
    printed = as_json(plan_run(stub, None))
    assert (printed["rows"], printed["to_answer"], printed["published_version"]) == (10_000, 0, 1)


def test_engine_is_chosen_by_what_the_job_needs(job: SliceJob) -> None:
    for given, name in (
        ({}, "VllmEngine"),
        ({"engine__kwargs": {"task_type": "embed"}}, "RayDataLLM"),
        ({"engine__kwargs": {"tokenizer_mode": "mistral"}}, "RayDataLLM"),
        ({"model_source": "s3://models/a"}, "RayDataLLM"),
    ):
        plan = plan_run(changed(job, engine="auto", **given), None).engine
        assert plan is not None
        assert plan.name == name


L4 = facts.ClusterFacts({"CPU": 8, "GPU": 1, "accelerator_type:L4": 1}, {}, 1, 24_000_000_000)


def test_limit_is_what_rows_need_and_what_the_cache_holds_at_most(job: SliceJob) -> None:
    auto = changed(job, engine__kwargs={"max_model_len": "auto"}, engine__workers="auto")
    engine = VllmEngine(auto, 10_000)
    assert (engine.max_model_len, engine.workers) == (None, (1, 1))
    # The model's own limit, which does not fit, is not checked.
    assert preflight_findings(engine.plan, 10_000, L4) == []
    unlimited = VllmEngine(changed(job, engine__kwargs={}), 10_000)
    assert [f.code for f in preflight_findings(unlimited.plan, 10_000, L4)] == ["cache_under_one_row"]
    engine.choose_sizes(facts.SizingInputs(L4, facts.TokenLengthSample([300] * 199 + [5000], 131_072)))
    assert (engine.engine_kwargs["max_model_len"], engine.limit_can_be_raised) == (320, True)
    assert preflight_findings(engine.plan, 10_000, L4) == []
    # The rows that were over it: one of them is too long for any L4, and is the engine's to refuse.
    engine.choose_sizes(
        facts.SizingInputs(L4, facts.TokenLengthSample([5000, 100_000], 131_072), limit_raised=True)
    )
    assert engine.max_model_len is not None
    assert 5000 < engine.max_model_len < 40_000
    assert not engine.limit_can_be_raised
    assert preflight_findings(engine.plan, 2, L4) == []

    # A limit beyond the model's own, as some overrides have it, is raised no more either.
    asked = VllmEngine(
        changed(job, engine__kwargs={"max_model_len": 65_536}, quality__on_too_long="raise_limit"), 10
    )
    asked.choose_sizes(facts.SizingInputs(None, facts.TokenLengthSample([70_000], 32_768), limit_raised=True))
    assert (asked.max_model_len, asked.limit_can_be_raised) == (65_536, False)


def test_workers_and_compiling_follow_the_cluster_and_earlier_slices(job: SliceJob) -> None:
    many = facts.ClusterFacts({"CPU": 64, "GPU": 8}, {}, 8, 80_000_000_000)
    for rows, pace, workers, eager in (
        (10_000, None, (1, 8), False),
        (10_000, facts.PastThroughput("2026-01-30", 400.0, 60.0), (1, 8), True),  # 3 s of work
        (100, None, (1, 1), True),
    ):
        engine = VllmEngine(changed(job, engine__workers="auto"), rows)
        engine.choose_sizes(facts.SizingInputs(many, past_throughput=pace))
        assert engine.workers == workers
        assert bool(engine.engine_kwargs.get("enforce_eager")) == eager
    asked = VllmEngine(changed(job, engine__kwargs={"enforce_eager": False}), 100)
    asked.choose_sizes(facts.SizingInputs(many))
    assert asked.engine_kwargs["enforce_eager"] is False


def test_steps_of_a_full_engine_have_cuda_graphs_unless_the_job_says_which(job: SliceJob) -> None:
    def graphs(gpu_bytes: int = 80 * 1024**3, **engine_kwargs: Any) -> Any:
        engine = VllmEngine(changed(job, engine__kwargs=engine_kwargs), 10_000)
        engine.choose_sizes(facts.SizingInputs(facts.ClusterFacts({"GPU": 1}, {}, 1, gpu_bytes)))
        return engine.engine_kwargs.get("cudagraph_capture_sizes")

    assert graphs()[-1] == 2048  # 1,024 rows, and as many tokens of new prompts
    assert graphs(max_num_seqs=512)[-1] == 1024
    assert graphs(max_num_seqs=256) is None  # vLLM's own
    assert graphs(gpu_bytes=24 * 1024**3) is None
    assert graphs(cudagraph_capture_sizes=[1]) == [1]
    assert graphs(compilation_config={"level": 3}) is None
    assert graphs(enforce_eager=True) is None


def test_plan_of_a_slice_that_shares_its_engine_asks_no_cluster(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = changed(job, engine__scope="shared")
    (tmp_path / "spec.json").write_text(shared.model_dump_json())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody there
    assert main(["plan", str(tmp_path / "spec.json")]) == 0
    said = capsys.readouterr().out
    assert f"engine         SharedVllmEngine, {tmp_path}/model" in said
    assert "workers        1 to 4 (1 to 4 GPUs)" in said
    assert "none can be reached from here" in said
