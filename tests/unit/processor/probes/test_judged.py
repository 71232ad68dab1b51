"""Judged answers: random ones of the slice, of which a second model says whether they are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.log.progress_text import result_lines
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.probes.judged import _judging
from airflow_provider_raydatallm.processor.run_plan import as_json, as_table, plan_run
from tests.support import stub_engine
from tests.support.in_process import InProcess, answer_instead, changed, job_of, run_in_process
from tests.support.slice_files import checkpoint_folders

NAMES = [f"name {n}" for n in range(30)]
ASKS = {"model": "m/judge", "prompt": "Name: {name} Answer: {answer} Is it right?", "rows": 10}


class Judging(InProcess):
    """The judge says no to texts that hold one of these. Notes the questions, and of which model."""

    def __init__(self, refuses: str = "-", fails: str = "-", says: str = "yes", **given: Any) -> None:
        super().__init__(answer=self._answer, **given)
        self.refuses, self.fails, self.says = refuses, fails, says
        self.asked: list[tuple[str, str]] = []
        self.checked: list[str] = []
        self._model = ""

    def preflight(self, inference: Any, missing: Any) -> list[Any]:
        self.checked.append(inference.job.model_source)
        return []

    def _answer_run(self, run: Any, on_update: Any) -> None:
        self._model = run.inference.job.model_source
        super()._answer_run(run, on_update)

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.asked]

    def _answer(self, batch: pa.Table) -> pa.Table:
        requests = [json.loads(text) for text in batch["__request"].to_pylist()]
        contents = [request["messages"][0]["content"] for request in requests]
        self.asked += [(self._model, text) for text in contents]
        if self._model != "m/judge":
            return stub_engine.answer(batch)
        for request, text in zip(requests, contents, strict=True):
            verdict = "fails" if self.fails in text else "no" if self.refuses in text else self.says
            assert request["sampling_params"].pop("structured_outputs")["choice"] == ["yes", "no"]
            request["messages"][0]["content"] = verdict
        return answer_instead(batch, requests)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    for name, some in (("a", NAMES[:20]), ("b", NAMES[20:])):
        pq.write_table(pa.table({"name": some}), tmp_path / "in" / f"{name}.parquet", row_group_size=9)
    quality = {"max_quarantine": 0.5, "judge": ASKS}
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality=quality)


def test_second_model_judges_random_answers(job: SliceJob) -> None:
    plain = run_in_process(changed(job, quality__judge=None, output_path=f"{job.output_path}-2"))
    cluster = Judging(refuses="7")
    assert as_json(plan_run(job, None))["judge"] == {"rows": 10, "to_answer": 10}
    report = run_in_process(job, cluster)
    assert cluster.checked == ["m/m", "m/judge"]
    assert (report.counts, report.tokens) == (plain.counts, plain.tokens)
    assert cluster.texts[:30] == NAMES
    questions = cluster.texts[30:]
    assert {model for model, _ in cluster.asked[30:]} == {"m/judge"}
    known = {f"Name: {name} Answer: {name} Is it right?" for name in NAMES}
    assert (len(questions), set(questions) <= known) == (10, True)
    refused = sum("7" in text for text in questions)
    judge = report.judge
    assert judge is not None
    assert (judge.model, judge.rows, judge.approved, judge.failed) == ("m/judge", 10, 10 - refused, 0)
    assert judge.share == (10 - refused) / 10
    assert checkpoint_folders(job) == []
    assert pq.read_table(job.slice_path, partitioning=None)["answer"].to_pylist() == NAMES


def test_answers_that_it_does_not_judge_are_no_agreement(job: SliceJob) -> None:
    judge = run_in_process(changed(job, quality__judge={**ASKS, "rows": 30}), Judging("7", fails="4")).judge
    assert judge is not None
    assert (judge.rows, judge.failed, judge.approved) == (30, 3, 24)
    assert judge.share == pytest.approx(24 / 27)
    nothing = changed(job, output_path=f"{job.output_path}-2")
    none = run_in_process(nothing, Judging(fails="name")).judge
    assert none is not None
    assert (none.share, none.low, none.high, none.failed) == (None, 0, 1, 10)
    assert str(none) == "m/judge judged none of 10 answers"


def test_rows_that_failed_are_not_judged(job: SliceJob) -> None:
    names = ["fails"] * 10 + NAMES[10:]
    pq.write_table(pa.table({"name": names[:20]}), f"{job.input_path}a.parquet", row_group_size=9)
    judge = run_in_process(changed(job, quality__judge={**ASKS, "rows": 30}), Judging()).judge
    assert judge is not None
    assert (judge.rows, judge.approved) == (20, 20)


def test_slice_without_an_answer_has_nothing_to_judge(job: SliceJob) -> None:
    for name in "ab":
        pq.write_table(pa.table({"name": ["fails"]}), f"{job.input_path}{name}.parquet")
    judge = run_in_process(changed(job, quality__max_quarantine=1), Judging()).judge
    assert judge is not None
    assert (judge.rows, judge.share) == (0, None)


def test_gate_of_the_judge(job: SliceJob) -> None:
    gated = changed(job, quality__judge={**ASKS, "rows": 30}, quality__gates=[{"of": "judge", "min": 0.95}])
    cluster = Judging("7")
    with pytest.raises(SliceError, match=r"judge is 0\.9, below min 0\.95"):
        run_in_process(gated, cluster)
    cluster.asked.clear()
    report = run_in_process(changed(gated, quality__gates=[{"of": "judge", "min": 0.9}]), cluster)
    assert (report.outcome, cluster.texts) == ("published", [])
    unknown = changed(gated, output_path=f"{job.output_path}-2")
    [verdict] = run_in_process(unknown, Judging(fails="name")).gates or ()
    assert verdict.verdict == "unknown"


@pytest.mark.parametrize(("answered", "verdict"), [(15, "passed"), (14, "unknown")])
def test_share_of_few_answers_is_no_figure_of_a_gate(job: SliceJob, answered: int, verdict: str) -> None:
    judges = Judging()
    judges.before_batch = lambda batch: setattr(
        judges, "fails", "-" if len(judges.asked) < 30 + answered else "name"
    )
    judges.batch = 1
    gate = {"of": "judge", "min": 0.9}
    gated = changed(job, quality__judge={**ASKS, "rows": 30}, quality__gates=[gate])
    report = run_in_process(gated, judges)
    assert report.judge is not None
    assert (report.judge.rows, report.judge.failed, report.judge.share) == (30, 30 - answered, 1)
    assert [told.verdict for told in report.gates or ()] == [verdict]
    later = changed(gated, slice_key="2026-02-01")
    after = run_in_process(later, Judging()).judge
    assert after is not None
    assert after.before == (1 if verdict == "passed" else None)
    held = changed(gated, output_path=f"{job.output_path}-2", quality__gates=[{**gate, "then": "hold"}])
    judges.asked.clear()
    assert run_in_process(held, judges).outcome == ("published" if verdict == "passed" else "held")


@pytest.mark.parametrize(
    ("said", "approved"), [("Yes", 10), (" yes.\n", 10), ("**YES**", 10), ("No.", 0), ("Yes and no", None)]
)
def test_verdict_of_a_model_that_nothing_makes_write_a_choice(
    job: SliceJob, said: str, approved: int | None
) -> None:
    judge = run_in_process(job, Judging(says=said)).judge
    assert judge is not None
    assert (judge.approved, judge.failed) == ((approved, 0) if approved is not None else (0, 10))


def test_run_after_one_that_was_killed_asks_what_is_missing(job: SliceJob) -> None:
    def die(batch: pa.Table) -> None:
        if len(cluster.asked) > 35:
            raise KeyboardInterrupt

    cluster = Judging(batch=3, before_batch=die)
    with pytest.raises(KeyboardInterrupt):
        run_in_process(job, cluster)
    later = Judging()
    report = run_in_process(job, later)
    assert {model for model, _ in later.asked} == {"m/judge"}
    assert len(later.asked) == 40 - len(cluster.asked)
    assert report.judge is not None
    assert report.judge.approved == 10


@pytest.mark.parametrize("damaged", [b"", b"PAR1"])
def test_damaged_file_of_judged_rows_is_written_anew(job: SliceJob, damaged: bytes) -> None:
    with pytest.raises(SliceError, match="did not pass"):
        run_in_process(changed(job, quality__gates=[{"of": "rows", "max": 1}]), Judging())
    [file] = Path(job.paths.metadata).glob("checkpoint/*/judge-*/rows-*.parquet")
    file.write_bytes(damaged)
    judge = run_in_process(job, Judging()).judge
    assert judge is not None
    assert (judge.rows, judge.approved) == (10, 10)


def test_result_says_what_it_found(job: SliceJob) -> None:
    for outcome, gates in (("held", [{"of": "rows", "then": "hold"}]), ("published", [])):
        report = run_in_process(changed(job, quality__gates=gates, quality__repeat=3), Judging())
        assert report.outcome == outcome
        said = [line.partition(" (")[0] for line in result_lines(report)]
        assert "m/judge agrees with 10 of 10 answers: 100.0%" in said
        assert "0 of 3 rows that were asked twice have another answer: 0.0%" in said


def test_plan_tells_that_a_staged_slice_is_judged(job: SliceJob) -> None:
    held = changed(job, quality__gates=[{"of": "rows", "then": "hold"}])
    assert run_in_process(held, Judging()).outcome == "held"
    assert as_json(plan_run(held, None))["judge"] == {"rows": 10, "to_answer": 0}
    assert "which the run publishes if the gates let it" in as_table(plan_run(held, None))
    another = changed(held, quality__judge={**ASKS, "rows": 9})
    assert as_json(plan_run(another, None))["judge"] == {"rows": 9, "to_answer": 9}


def test_another_question_is_asked_anew(job: SliceJob) -> None:
    with pytest.raises(SliceError, match="did not pass"):
        run_in_process(changed(job, quality__gates=[{"of": "rows", "max": 1}]), Judging())
    cluster = Judging()
    run_in_process(changed(job, quality__judge={**ASKS, "prompt": "Is {answer} right?"}), cluster)
    assert len(cluster.texts) == 10
    assert cluster.texts[0].startswith("Is name ")


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (
            {"prompt": "Is {nam} right: {answer}?"},
            "quality.judge names the column 'nam', which neither the input nor the answers have: the columns",
        ),
        ({"prompt": "Is {name} right?"}, "quality.judge asks nothing about the answers"),
    ],
)
def test_question_that_cannot_be_asked_is_refused_before_any_row(
    job: SliceJob, asks: dict[str, Any], says: str
) -> None:
    cluster = Judging()
    with pytest.raises(SliceError, match=says):
        run_in_process(changed(job, quality__judge={**ASKS, **asks}), cluster)
    assert cluster.asked == []


@pytest.mark.parametrize("given", [
    {"engine": "vllm", "adapter": {"path": "/lora"}, "labels": {"confidence": True}, "choices": ["a", "b"]},
    {"engine": {"kind": "http", "url": "https://x/v1"}},
    {"engine": "vllm", "task": "transcribe", "audio": {"column": "name"}, "prompt": None},
    {"postprocess": "tests.unit.processor.probes.test_repeated:as_parts", "code_hash": "0123"},
])  # fmt: skip
def test_judge_is_asked_by_a_job_as_any_other(job: SliceJob, given: dict[str, Any]) -> None:
    asked = _judging(changed(job, **given))
    assert SliceJob.model_validate_json(asked.model_dump_json()) == asked


def test_what_does_not_go_together(job: SliceJob) -> None:
    with pytest.raises(ValueError, match=r"quality.judge says whether answers are right, and task='embed'"):
        changed(job, task="embed")
    with pytest.raises(ValueError, match=r"quality.judge\['kwargs'\]\['hf_token'\] looks like a secret"):
        changed(job, quality__judge={**ASKS, "kwargs": {"hf_token": "hidden-away"}})
    with pytest.raises(ValueError, match="trust_remote_code would run"):
        changed(job, quality__judge={**ASKS, "kwargs": {"trust_remote_code": True}})
