"""Golden rows that were wrong beside answers of an earlier run: a model that was mended makes none right."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people
from airflow_provider_raydatallm.processor.build_run import BuildRun
from airflow_provider_raydatallm.processor.engines.base import Engine
from airflow_provider_raydatallm.processor.probes.golden import GoldenRows
from airflow_provider_raydatallm.processor.publish.staged_commands import publish_approved
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store.file_names import golden_of_epoch
from airflow_provider_raydatallm.processor.store.leftovers import remove_rows
from tests.support.in_process import InProcess, answer_with, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.unit.processor.probes.test_golden import numbers

GATE = [{"of": "golden", "min": 1}]
HOLD = [{**GATE[0], "then": "hold"}]
ROWS = [str(n) for n in range(5)]


class Model(InProcess):
    """Answers all rows alike, and fails for one at first."""

    def __init__(self) -> None:
        self.says, self.fails = "broken", "3"
        super().__init__(answer=self._answer)

    def _answer(self, batch: pa.Table) -> pa.Table:
        asked = [json.loads(text)["messages"][-1]["content"] for text in batch["__request"].to_pylist()]
        answered = answer_with(text=self.says)(batch)
        for name, of_failed in (("text", None), ("error", "it fails"), ("error_type", "Fails")):
            column = answered[name].to_pylist()
            some = [
                of_failed if text == self.fails else value for text, value in zip(asked, column, strict=True)
            ]
            index = answered.schema.get_field_index(name)
            answered = answered.set_column(index, name, pa.array(some, answered.schema.field(name).type))
        return answered

    def mend(self) -> None:
        self.says, self.fails = "good", ""


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{n}",
        quality__max_quarantine=0.9, quality__golden={"path": f"{tmp_path}/golden.csv"},
        quality__gates=GATE, rerun__on_input_change="extend",
    )  # fmt: skip
    add(job, ROWS)
    write_golden(job, {"1000": "good"})
    return job


def add(job: SliceJob, rows: list[str]) -> Path:
    path = Path(job.input_path, f"{rows[0]}.csv")
    path.write_text("\n".join(["n", *rows]) + "\n")
    return path


def write_golden(job: SliceJob, right: dict[str, str]) -> None:
    rows = [f"{n},{answer}" for n, answer in right.items()]
    Path(job.input_path).with_name("golden.csv").write_text("\n".join(["n,answer", *rows]) + "\n")


def stopped(job: SliceJob, model: Model) -> None:
    with pytest.raises(SliceError, match="golden"):
        run(job, model)


def answers(job: SliceJob) -> list[str]:
    found: list[str] = pq.read_table(job.slice_path, partitioning=None)["answer"].to_pylist()
    return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From when on other slices are to doubt answers of the cache, each time that the engine is told."""
    since_of: list[float] = []
    monkeypatch.setattr(Engine, "doubt_answers", lambda engine, since: since_of.append(since))
    return since_of


def late_file(job: SliceJob, model: Model) -> SliceJob:
    add(job, ["7"])
    return job


def retry(job: SliceJob, model: Model) -> SliceJob:
    return changed(job, rerun__retry_quarantined=True)


def one_asked_again(job: SliceJob, model: Model) -> SliceJob:
    held = changed(job, quality__gates=HOLD)
    ask_again_for_people(job.address, run(held, model).staged_version, "n = '0'")
    return job


def one_more_golden(job: SliceJob, model: Model) -> SliceJob:
    write_golden(job, {"1000": "good", "1001": "good"})
    return job


@pytest.mark.parametrize("change", [late_file, retry, one_asked_again, one_more_golden])
def test_few_rows_of_a_mended_model_do_not_let_those_of_the_broken_one_pass(
    job: SliceJob, model: Model, change: Callable[[SliceJob, Model], SliceJob]
) -> None:
    stopped(job, model)
    model.mend()
    stopped(job, model)
    job = change(job, model)
    stopped(job, model)
    report = run(changed(job, quality__gates=HOLD), model)
    assert (report.outcome, report.golden.accuracy if report.golden else None) == ("held", 1.0)
    assert "of an earlier run" in str(report.golden)
    assert report.staged_version is not None
    publish_approved(job, report.staged_version)  # a person may
    assert "broken" in answers(job)
    add(job, ["8"])
    assert run(job, model).outcome == "published"  # what is published was approved


@pytest.mark.parametrize(
    ("gate", "doubts"), [(GATE[0], True), (HOLD[0], True), ({"of": "rows", "max": 1}, False)]
)
def test_other_slices_do_not_get_what_golden_rows_speak_against(
    job: SliceJob, model: Model, told: list[float], gate: dict[str, Any], doubts: bool
) -> None:
    """From a cache, that is, which the engine knows."""
    began = time.time()
    for _ in range(2):  # the second time without an answer
        with contextlib.suppress(SliceError):
            run(changed(job, quality__gates=[gate]), model)
    assert len(told) == doubts
    assert all(began < since < time.time() for since in told)


def test_other_slices_get_nothing_of_a_run_that_was_killed_before_its_gates(
    job: SliceJob, model: Model, told: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    with monkeypatch.context() as context:
        context.setattr(BuildRun, "stage", die)
        with pytest.raises(KeyboardInterrupt):
            run(job, model)
    ended = time.time()
    assert told == []
    for _ in range(2):  # without an answer of their own
        stopped(job, model)
    [since] = told
    assert began < since < ended


def test_other_slices_hear_of_a_staged_version_that_is_judged_again(
    job: SliceJob, model: Model, told: list[float]
) -> None:
    other = {"of": "rows", "max": 1, "then": "hold"}
    assert run(changed(job, quality__gates=[other, {"of": "golden", "min": 0}]), model).outcome == "held"
    assert told == []
    asked = model.answered
    for _ in range(2):
        stopped(changed(job, quality__gates=[other, *GATE]), model)
    assert (len(told), model.answered) == (1, asked)


def die(*given: Any, **named: Any) -> None:
    raise KeyboardInterrupt


def other_format(job: SliceJob) -> SliceJob:
    golden = Path(job.input_path).with_name("golden.csv")
    golden.with_suffix(".jsonl").write_text('{"a": "good", "f": 0.50, "m": 3, "t": 0.5, "n": "1000"}\n')
    return changed(job, quality__golden={"path": str(golden.with_suffix(".jsonl"))})


def other_columns(job: SliceJob) -> SliceJob:
    write_rows(job, "n,t,m,a,b,note", "1000,0.5,3,good,1,checked")
    return job


def other_order(job: SliceJob) -> SliceJob:
    return changed(job, sampling_params={"top_k": "{m}", "temperature": "{t}"})


def write_rows(job: SliceJob, *lines: str) -> None:
    Path(job.input_path).with_name("golden.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("edit", [other_format, other_columns, other_order])
def test_right_answer_is_the_same_however_its_file_and_the_job_are_written(
    job: SliceJob, model: Model, edit: Callable[[SliceJob], SliceJob]
) -> None:
    of_answer = {"a": {"type": "string"}, "b": {"type": "integer"}, "f": {"type": "number"}}
    job = changed(
        job,
        output_schema={"type": "object", "properties": of_answer, "required": [*of_answer]},
        output_mode="columns",
        sampling_params={"temperature": "{t}", "top_k": "{m}"},
    )
    Path(job.input_path, "0.csv").write_text("n,t,m\n0,0.5,3\n")
    write_rows(job, "n,t,m,a,f", "1000,0.5,3,good,0.5")
    model.says = '{"a": "broken", "b": 1, "f": 0.5}'
    stopped(job, model)
    model.says = '{"a": "good", "b": 1, "f": 0.5}'
    Path(job.input_path, "7.csv").write_text("n,t,m\n7,0.5,3\n")
    stopped(edit(job), model)


@pytest.mark.parametrize(("broken", "good", "right"), [
    (None, 0.5, "0.5"), (0, 0.5, "0.5"), ([], ["a"], '["a"]'), (None, "x", "x"),
])  # fmt: skip
def test_broken_answers_may_be_of_another_type(
    job: SliceJob, model: Model, broken: Any, good: Any, right: str
) -> None:
    """As a function returns them that does not say what."""
    job = changed(job, postprocess=f"{__name__}:loaded")
    write_rows(job, "n,answer", '1000,"' + right.replace('"', '""') + '"')
    model.says, model.fails = json.dumps(broken), ""
    stopped(job, model)
    model.says = json.dumps(good)
    add(job, ["7"])
    stopped(job, model)


def loaded(row: dict[str, Any]) -> dict[str, Any]:
    return {"answer": json.loads(row["answer"])}


def test_golden_row_that_is_added_forgets_none(job: SliceJob, model: Model) -> None:
    """Also where it gives all rows one more key."""
    job = changed(job, prompt=None, messages="m")
    asked = {"role": "user", "content": "0"}
    Path(job.input_path, "0.csv").unlink()
    Path(job.input_path, "0.jsonl").write_text(json.dumps({"m": [asked]}) + "\n")
    golden = Path(job.input_path).with_name("golden.jsonl")
    job = changed(job, quality__golden={"path": str(golden)})
    rows = [{"m": [{**asked, "content": "1000"}], "answer": "good"}]
    golden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stopped(job, model)
    model.mend()
    rows.append({"m": [{**asked, "content": "1001", "name": "Ada"}], "answer": "good"})
    golden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stopped(job, model)


def test_golden_rows_may_ask_all_the_same(job: SliceJob, model: Model) -> None:
    """So many that no two of them could be held against each other."""
    job = changed(job, prompt="What now?", quality__gates=[{"of": "golden", "min": 0.5}])
    write_golden(job, {str(n): "good" for n in range(4_000)})
    model.batch = 4_000
    stopped(job, model)
    model.says = "good"
    add(job, ["7"])
    stopped(job, model)


def test_equal_golden_rows_have_each_their_own_right_answer(job: SliceJob, model: Model) -> None:
    job = changed(job, quality__gates=[{"of": "golden", "min": 0.5}])
    write_rows(job, "n,answer", "1000,broken", "1000,good")
    stopped(changed(job, quality__gates=GATE), model)
    model.mend()
    add(job, ["7"])
    report = run(job, model)
    assert (report.golden and report.golden.accuracy, report.golden and report.golden.lowest) == (0.5, None)


def test_many_golden_rows_that_are_added_dilute_none(job: SliceJob, model: Model) -> None:
    job = changed(job, quality__gates=[{"of": "golden", "min": 0.9}])
    stopped(job, model)
    model.mend()
    write_golden(job, {str(n): "good" for n in range(1000, 1020)})
    stopped(job, model)


def test_golden_row_may_have_a_deep_text(job: SliceJob, model: Model) -> None:
    write_golden(job, {"[" * 900 + "]" * 900: "broken"})
    assert run(job, model).outcome == "published"


def test_labels_of_a_row_may_be_written_in_another_order(job: SliceJob, model: Model) -> None:
    job = changed(job, choices=["good", "bad", "x"], engine="vllm", labels__multi=True)
    model.answer = numbers(lambda name: [0.1, 0.9, 0.1])
    write_rows(job, "n,answer", '1000,"[""good"", ""x""]"')
    stopped(job, model)
    model.answer = numbers(lambda name: [0.9, 0.1, 0.9])
    write_rows(job, "n,answer", '1000,"[""x"",""good""]"')
    add(job, ["7"])
    stopped(job, model)


def killed(job: SliceJob, model: Model, at: str = "1000") -> None:
    """A run that answers the slice's rows, and its golden ones before this."""

    def die(batch: pa.Table) -> None:
        if any(f'"{at}"' in text for text in batch["__request"].to_pylist()):
            raise KeyboardInterrupt

    model.before_batch, model.batch, batch = die, 1, model.batch
    with pytest.raises(KeyboardInterrupt):
        run(job, model)
    model.before_batch, model.batch = lambda batch: None, batch


def test_answers_of_a_run_that_was_killed_before_its_golden_rows_count_as_those_of_the_next(
    job: SliceJob, model: Model, told: list[float]
) -> None:
    began = time.time()
    killed(job, model)
    first_ended = time.time()
    late = add(job, ["7"])
    stopped(job, model)
    assert began < min(told) < first_ended  # other slices get none of that run's either
    model.mend()
    late.unlink()
    add(job, ["8"])
    stopped(job, model)


def test_golden_rows_that_were_wrong_are_not_forgotten_where_their_run_was_killed(
    job: SliceJob, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(GoldenRows, "figures", die)
        with pytest.raises(KeyboardInterrupt):
            run(job, model)
    model.mend()
    add(job, ["7"])
    stopped(job, model)


def test_golden_rows_without_an_answer_are_none_that_were_wrong(job: SliceJob, model: Model) -> None:
    """Their run was killed before it had them all."""
    write_golden(job, {"1000": "broken", "1001": "broken"})

    killed(job, model, at="1001")
    add(job, ["7"])
    report = run(job, model)
    assert (report.outcome, report.golden and report.golden.lowest) == ("published", None)


def test_run_goes_on_that_was_killed_when_its_first_golden_row_was_wrong(job: SliceJob, model: Model) -> None:
    job = changed(job, quality__gates=[{"of": "golden", "min": 0.75}])
    write_golden(job, {"1000": "good", **{str(n): "broken" for n in (1001, 1002, 1003)}})
    killed(job, model, at="1001")
    assert run(job, model).outcome == "published"


def test_first_golden_rows_speak_for_a_run_that_was_killed_before_the_others(
    job: SliceJob, model: Model
) -> None:
    job = changed(job, quality__gates=[{"of": "golden", "min": 0.75}])
    write_golden(job, {str(n): "good" for n in range(1000, 1010)})
    killed(job, model, at="1001")
    model.mend()
    add(job, ["7"])
    stopped(job, model)


def test_all_rows_asked_again_pass(job: SliceJob, model: Model) -> None:
    stopped(job, model)
    model.mend()
    report = run(changed(job, rerun__force=True), model)
    assert (report.outcome, report.golden and report.golden.lowest) == ("published", None)
    assert set(answers(job)) == {"good"}


def test_corrected_right_answer_needs_no_inference_of_the_slice(job: SliceJob, model: Model) -> None:
    stopped(job, model)
    write_golden(job, {"1000": "broken"})
    asked = model.answered
    assert run(job, model).outcome == "published"
    assert model.answered - asked == 1


def test_version_of_another_input_that_is_published_meanwhile_changes_nothing(
    job: SliceJob, model: Model
) -> None:
    model.says = "good"
    assert run(job, model).published_version == 1
    late = add(job, ["7", "8"])
    model.says, model.fails = "broken", ""
    stopped(job, model)
    model.mend()
    away = late.rename(late.parent.with_name(late.name))
    assert run(retry(job, model), model).published_version == 2
    away.rename(late)
    stopped(job, model)


def test_rows_that_a_stopped_run_took_over_are_published_with_others(job: SliceJob, model: Model) -> None:
    """They are those of a version that passed, whichever run copied them."""
    model.says, model.fails = "good", ""
    assert run(job, model).published_version == 1
    late = add(job, ["7"])
    model.says = "broken"
    stopped(job, model)
    model.mend()
    late.unlink()
    add(job, ["8"])
    report = run(job, model)
    assert (report.published_version, report.golden and report.golden.lowest) == (2, None)
    assert set(answers(job)) == {"good"}


def test_what_speaks_against_answers_is_removed_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(Store, "remove_all", lambda store, names: removed.extend(names))
    note, rows = f"q/{golden_of_epoch(1)}", "q/rows-mixed-1-e000001-0123456789abcdef.arrow"
    remove_rows(Store(str(tmp_path)), [note, rows])
    assert removed == [rows, note]
