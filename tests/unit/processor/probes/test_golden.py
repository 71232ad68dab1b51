"""Golden rows: answered with the slice's, published by nobody, and compared with what is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.probes import Confusion
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import EngineGivenUpError
from airflow_provider_raydatallm.processor.probes import golden
from airflow_provider_raydatallm.processor.run_plan import as_json, as_table, plan_run
from airflow_provider_raydatallm.processor.slice_run import run_slice
from tests.support.in_process import InProcess, answer_with, changed, job_of, run_in_process
from tests.support.slice_files import answers, checkpoint_folders, files_below, metadata

NAMES = [f"name {n}" for n in range(25)]
#: What the stub engine answers, but for one row that it gets wrong and one that fails.
GOLDEN = [
    {"name": "known", "answer": "known"},
    {"name": "known, too", "answer": "known, too"},
    {"name": "wrong", "answer": "right"},
    {"name": "fails", "answer": "fails"},
]


class Asks(InProcess):
    """Notes the texts of requests, in order."""

    def __init__(self, **given: Any) -> None:
        super().__init__(before_batch=self._note, **given)
        self.texts: list[str] = []
        self.ends_at: str | None = None

    def _note(self, batch: pa.Table) -> None:
        texts = [json.loads(text)["messages"][0]["content"] for text in batch["__request"].to_pylist()]
        if self.ends_at in texts:
            raise KeyboardInterrupt
        self.texts += texts


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"name": NAMES}), tmp_path / "in" / "a.parquet")
    return job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", quality__max_quarantine=0)


def write(job: SliceJob, rows: list[dict[str, Any]] = GOLDEN, name: str = "golden.jsonl") -> str:
    """A file of golden rows, beside the input."""
    path = Path(job.input_path).parent / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def with_golden(job: SliceJob, path: str, **given: Any) -> SliceJob:
    return changed(job, quality__golden={"path": path}, **given)


def stopped(job: SliceJob, cluster: InProcess, of: str = "rows") -> None:
    """A run that answers all rows and publishes nothing."""
    with pytest.raises(SliceError, match="did not pass"):
        run_in_process(changed(job, quality__gates=[{"of": of, "min": 1, "max": 1}]), cluster)


def test_golden_rows_get_no_answer_from_before(job: SliceJob) -> None:
    """Of a cache, say, which knows the engine of another day under the same name."""
    requests: list[Any] = []
    cluster = InProcess(before_batch=lambda batch: requests.extend(batch["__request"].to_pylist()))
    run_in_process(with_golden(job, write(job)), cluster)
    again = [json.loads(text).get("again", False) for text in requests]
    assert again == [False] * len(NAMES) + [True] * len(GOLDEN)


def test_golden_rows_are_in_no_figure_of_the_slice_but_their_own(job: SliceJob) -> None:
    plain = run_in_process(job)
    table, files = pq.read_table(job.slice_path, partitioning=None), files_below(metadata(job))
    cluster, told = Asks(), []
    other = with_golden(changed(job, output_path=f"{job.output_path}-2"), write(job))
    report = run_slice(other, told.append, cluster)
    assert pq.read_table(other.slice_path, partitioning=None).equals(table)
    assert len(files_below(metadata(other))) == len(files)
    assert (report.counts, report.tokens, report.fingerprint) == (
        plain.counts,
        plain.tokens,
        plain.fingerprint,
    )
    assert sum(report.history.rows if report.history else ()) == len(NAMES)
    assert max(progress.get("rows", 0) for progress in told) == len(NAMES)
    golden = report.golden
    assert golden is not None
    assert (golden.rows, golden.correct, golden.accuracy, golden.columns) == (4, 2, 0.5, ("answer",))
    assert (golden.tokens.input, golden.tokens.output) == (21, 9)  # of the three that were answered
    assert (golden.confusion, golden.calibration_error, golden.before) == (None, None, None)
    assert (round(golden.low, 4), round(golden.high, 4)) == (0.15, 0.85)
    assert plain.golden is None
    assert cluster.texts == [*NAMES, *(row["name"] for row in GOLDEN)]
    assert checkpoint_folders(other) == []


def test_golden_rows_are_asked_once(job: SliceJob) -> None:
    cluster = Asks()
    job = with_golden(job, write(job))
    assert re.search(r"golden rows +4, of which 4 are to be answered", as_table(plan_run(job, None)))
    stopped(job, cluster)
    assert len(cluster.texts) == len(NAMES) + 4
    cluster.texts.clear()
    assert as_json(plan_run(job, None))["golden"] == {"rows": 4, "to_answer": 0}
    report = run_in_process(job, cluster)
    assert cluster.texts == []
    assert report.golden is not None
    assert (report.golden.correct, report.golden.tokens.input) == (2, 21)
    assert run_in_process(job, cluster).golden == report.golden  # unchanged


def test_other_golden_rows_are_all_that_is_asked(job: SliceJob) -> None:
    cluster = Asks()
    stopped(job, cluster)
    cluster.texts.clear()
    stopped(with_golden(job, write(job)), cluster)
    assert cluster.texts == [row["name"] for row in GOLDEN]
    cluster.texts.clear()
    report = run_in_process(with_golden(job, write(job, GOLDEN[:1])), cluster)
    assert cluster.texts == ["known"]
    assert report.counts.resumed == len(NAMES)
    assert report.golden is not None
    assert report.golden.accuracy == 1
    assert checkpoint_folders(job) == []


@pytest.mark.parametrize(("ends_at", "left"), [("name 20", 9), ("wrong", 2)])
def test_run_after_one_that_was_killed_asks_what_is_missing(job: SliceJob, ends_at: str, left: int) -> None:
    cluster = Asks(batch=1)
    job = with_golden(job, write(job))
    cluster.ends_at = ends_at
    with pytest.raises(KeyboardInterrupt):
        run_in_process(job, cluster)
    cluster.texts, cluster.ends_at = [], None
    report = run_in_process(job, cluster)
    assert len(cluster.texts) == left
    assert report.golden is not None
    assert (report.golden.rows, report.golden.correct) == (4, 2)
    assert answers(job) == NAMES


def test_damaged_fragments_of_golden_rows_are_asked_again(job: SliceJob) -> None:
    cluster = Asks()
    job = with_golden(job, write(job))
    stopped(job, cluster)
    [fragment] = metadata(job).glob("checkpoint/*/golden-*/rows-*.arrow")
    fragment.write_bytes(fragment.read_bytes()[:-9])
    cluster.texts.clear()
    report = run_in_process(job, cluster)
    assert len(cluster.texts) == 3
    assert report.golden is not None
    assert report.golden.correct == 2


def test_golden_rows_have_the_slices_attempts_and_repairs(job: SliceJob) -> None:
    seen: list[str] = []

    def answer(batch: pa.Table) -> pa.Table:
        """Valid from the second time on, but for one row."""
        answers = answer_with()(batch)
        texts = []
        for text in batch["__request"].to_pylist():
            messages = json.loads(text)["messages"]
            name = messages[0]["content"]
            seen.append(name)
            texts.append("no" if name == "wrong" or len(messages) < 3 else "yes")
        return answers.set_column(answers.schema.get_field_index("text"), "text", pa.array(texts))

    path = write(job, [{"name": name, "answer": "yes"} for name in ("known", "wrong")])
    job = changed(with_golden(job, path), regex="yes", quality__repair=2)
    report = run_in_process(job, InProcess(answer=answer))
    assert report.golden is not None
    assert (report.golden.rows, report.golden.correct) == (2, 1)
    assert (seen.count("known"), seen.count("wrong"), seen.count(NAMES[0])) == (2, 3, 2)
    assert report.golden.tokens.input == 7 * 5
    assert report.counts.succeeded == len(NAMES)


def test_golden_row_that_fails_is_asked_no_more_by_a_retry_of_the_slices(job: SliceJob) -> None:
    cluster = Asks()
    golden = with_golden(job, write(job), rerun__retry_quarantined=True, quality__max_attempts=2)
    for _ in range(3):
        stopped(golden, cluster)
    assert cluster.texts.count("fails") == 2
    report = run_in_process(golden, cluster)
    assert report.golden is not None
    assert (report.golden.correct, cluster.texts.count("fails")) == (2, 2)


def test_engine_that_is_given_up_over_golden_rows_fails_no_row_of_the_slice(job: SliceJob) -> None:
    class Deadly(Asks):
        def _answer_run(self, run: Any, on_update: Any) -> None:
            if run.is_probe and len(self.texts) == len(NAMES):
                self.texts.append("")
                raise EngineGivenUpError("workers died", kind="engine")
            super()._answer_run(run, on_update)

    cluster = Deadly()
    report = run_in_process(with_golden(job, write(job)), cluster)
    assert report.golden is not None
    assert report.golden.correct == 2


def test_slice_that_loses_too_many_rows_asks_no_golden_row(job: SliceJob) -> None:
    pq.write_table(pa.table({"name": ["fails"]}), f"{job.input_path}/a.parquet")
    cluster = Asks()
    with pytest.raises(SliceError, match="failed"):
        run_in_process(with_golden(job, write(job)), cluster)
    assert cluster.texts == ["fails"]


def labels_job(job: SliceJob, path: str, **given: Any) -> SliceJob:
    return changed(with_golden(job, path), choices=["x", "y"], **given)


def test_labels_have_confusions(job: SliceJob) -> None:
    path = write(job, [{"name": str(n), "answer": "xy"[n > 5]} for n in range(8)])
    report = run_in_process(labels_job(job, path))
    assert report.golden is not None
    assert report.golden.accuracy == 0.75
    assert [one.model_dump() for one in report.golden.confusion or ()] == [
        {"expected": "y", "answered": "x", "rows": 2}
    ]


def test_long_label_that_is_right_is_no_confusion(job: SliceJob) -> None:
    x = "x" * 101
    path = write(job, [{"name": "a", "answer": x}, {"name": "b", "answer": "y"}])
    golden = run_in_process(changed(labels_job(job, path), choices=[x, "y"])).golden
    assert golden is not None
    assert golden.confusion == (Confusion(expected="y", answered=x[:100], rows=1),)


def test_labels_of_golden_rows_that_all_fail_have_confusions(job: SliceJob) -> None:
    def answer(batch: pa.Table) -> pa.Table:
        return answer_with(text="no label" if "known" in str(batch["__request"]) else "x")(batch)

    path = write(job, [{"name": "known", "answer": "x"}])
    golden = run_in_process(labels_job(job, path), InProcess(answer=answer)).golden
    assert golden is not None
    assert (golden.accuracy, golden.confusion) == (0, (Confusion(expected="x", rows=1),))


def numbers(of: Callable[[str], list[float]]) -> Callable[[pa.Table], pa.Table]:
    def answer(batch: pa.Table) -> pa.Table:
        answers = answer_with(text=None)(batch)
        names = [json.loads(text)["messages"][-1]["content"] for text in batch["__request"].to_pylist()]
        column = pa.array(map(of, names), pa.list_(pa.float32()))
        return answers.set_column(answers.schema.get_field_index("numbers"), "numbers", column)

    return answer


def test_probabilities_of_labels_are_held_against_how_often_they_are_right(job: SliceJob) -> None:
    cluster = InProcess(answer=numbers(lambda name: [0.75, 0.25]))
    path = write(job, [{"name": str(n), "answer": "xy"[n > 4], "answer_probability": 1} for n in range(10)])
    report = run_in_process(labels_job(job, path, engine="vllm", labels__confidence=True), cluster)
    assert report.golden is not None
    assert report.golden.columns == ("answer",)  # an export has more columns, which nobody corrects
    assert report.golden.calibration_error == pytest.approx(0.25)


def test_several_labels_are_compared_as_sets(job: SliceJob) -> None:
    path = Path(write(job, name="golden.csv"))
    path.write_text('name,answer\nboth,"[""y"", ""x""]"\nx,"[""x""]"\nx,"[]"\nnone,[]\n')
    of = {"both": [0.9, 0.9], "none": [0.1, 0.1]}
    cluster = InProcess(answer=numbers(lambda name: of.get(name, [0.9, 0.1])))
    report = run_in_process(labels_job(job, str(path), engine="vllm", labels__multi=True), cluster)
    assert report.golden is not None
    assert (report.golden.correct, report.golden.rows, report.golden.confusion) == (3, 4, None)


def test_texts_of_a_csv_file_are_compared_as_what_the_answers_are(job: SliceJob) -> None:
    """The request reads a number, which a text of a file would write otherwise."""
    pq.write_table(pa.table({"name": [1.5, 2.0]}), f"{job.input_path}/a.parquet")
    schema = {
        "type": "object", "properties": {"n": {"type": "number"}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"], "additionalProperties": False,
    }  # fmt: skip
    path = Path(write(job, name="golden.csv"))
    path.write_text("ok,n,name\ntrue,1.50,1.50\nfalse,3,3\ntrue,4.1,4\ntrue,none,5\n")
    job = changed(
        with_golden(job, str(path)), prompt='{"n": {name}, "ok": true}', output_schema=schema,
        output_mode="columns",
    )  # fmt: skip
    cluster = Asks()
    report = run_in_process(job, cluster)
    assert '"n": 3.0' in cluster.texts[3]
    assert report.golden is not None
    assert (report.golden.columns, report.golden.correct, report.golden.rows) == (("n", "ok"), 1, 4)


@pytest.mark.parametrize("name", ["golden.jsonl", "golden.parquet"])
def test_numbers_are_written_into_requests_as_the_slices_are(job: SliceJob, name: str) -> None:
    numbers = {"whole": [2.0], "exact": [Decimal("1.50")], "count": [7]}
    pq.write_table(pa.table(numbers), f"{job.input_path}/a.parquet")
    path = write(job, [{"whole": 2, "exact": 1.5, "count": 7, "answer": "2.0 1.50 7"}], name)
    if name.endswith("parquet"):
        pq.write_table(
            pa.table({"whole": [2], "exact": [1.5], "count": [7.0], "answer": ["2.0 1.50 7"]}), path
        )
    golden = run_in_process(with_golden(job, path, prompt="{whole} {exact} {count}")).golden
    assert golden is not None
    assert golden.accuracy == 1


@pytest.mark.parametrize(
    ("known", "answered", "is_right"),
    [
        ('{"n": 1.0, "ok": true}', '{"ok":true,"n":1}', True),
        ('{"n": 1, "ok": 1}', '{"n": 1, "ok": true}', False),
        ('{"n": 9007199254740993, "ok": 0}', '{"n": 9007199254740992, "ok": 0}', False),
        ("[" * 9000, "[" * 9000, True),
        (['{"n": 1}', "{}"], ['{"n":1}', "{ }"], True),
        (['{"n": 1}'], ['{"n":1}', '{"n":1}'], False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
    ],
)
def test_answers_in_json_are_equal_where_their_values_are(known: Any, answered: Any, is_right: bool) -> None:
    [one] = golden._are_equal(pa.chunked_array([[known]]), pa.chunked_array([[answered]]), "json")
    assert one is is_right


def test_labels_that_postprocess_made_numbers_are_compared_as_these(job: SliceJob) -> None:
    path = write(job, [{"name": "a", "answer": 1}, {"name": "b", "answer": 2}])
    made = changed(labels_job(job, path), postprocess="tests.unit.processor.probes.test_golden:as_number")
    golden = run_in_process(made).golden
    assert golden is not None
    assert (golden.accuracy, golden.confusion) == (0.5, (Confusion(expected="2", answered="1", rows=1),))


def as_number(row: dict[str, Any]) -> Any:
    return {"answer": len(row["answer"])}


def test_columns_that_only_answers_tell(job: SliceJob) -> None:
    path = write(job, [{"name": "abc", "size": 3, "note": "hm"}, {"name": "abc", "size": 4, "note": "hm"}])
    job = with_golden(job, path, postprocess="tests.unit.processor.probes.test_golden:size")
    report = run_in_process(job)
    assert report.golden is not None
    assert (report.golden.columns, report.golden.correct) == (("size",), 1)
    job = with_golden(changed(job, rerun__force=True), write(job, [{"name": "abc", "note": "hm"}]))
    with pytest.raises(SliceError, match="none of the columns that postprocess returned"):
        run_in_process(job)


def size(row: dict[str, Any]) -> Any:
    return {"size": len(row["answer"])}


def test_accuracy_is_shown_beside_that_of_the_slice_before(job: SliceJob) -> None:
    path = write(job)
    for day in ("01", "02"):
        run_in_process(changed(with_golden(job, path), slice_key=f"2026-01-{day}"))
    run_in_process(changed(job, slice_key="2026-01-03"))
    other = write(job, GOLDEN[:1], "other.jsonl")
    run_in_process(changed(with_golden(job, other), slice_key="2026-01-04"))
    report = run_in_process(changed(with_golden(job, path), slice_key="2026-01-05"))
    assert report.golden is not None
    assert report.golden.before == 0.5
    assert str(report.golden) == "2 of 4 golden rows are right: 50.0% (15.0% to 85.0%, 50.0% before)"


def test_file_that_is_written_again_with_the_same_content_is_the_same(job: SliceJob) -> None:
    """As a checkout or an export does, each time."""
    cluster = Asks()
    golden = with_golden(job, write(job))
    stopped(golden, cluster)
    cluster.texts.clear()
    Path(write(job)).replace(path := write(job, name="moved.jsonl"))
    report = run_in_process(with_golden(job, path), cluster)
    assert (report.outcome, cluster.texts) == ("published", [])
    gate = [{"of": "golden", "against": 1, "max": 0.1}]
    later = changed(with_golden(job, write(job)), slice_key="2026-02-01", quality__gates=gate)
    report = run_in_process(later, cluster)
    assert report.golden is not None
    assert report.golden.before == 0.5
    assert [verdict.slices for verdict in report.gates or ()] == [1]
    others = changed(later, slice_key="2026-02-02", quality__golden={"path": write(job, GOLDEN[1:])})
    report = run_in_process(others, cluster)
    assert report.golden is not None
    assert report.golden.before is None


def test_files_with_the_same_content_have_rows_of_their_own(job: SliceJob, tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        Path(write(job, GOLDEN[:3])).replace(tmp_path / "golden" / name)
    report = run_in_process(with_golden(job, f"{tmp_path}/golden/"))
    assert report.golden is not None
    assert (report.golden.rows, report.golden.correct) == (6, 4)


def test_gate_of_golden_rows_stops_or_holds_a_slice(job: SliceJob) -> None:
    cluster = Asks()
    job = with_golden(job, write(job))
    strict = changed(job, quality__gates=[{"of": "golden", "min": 0.9}])
    with pytest.raises(SliceError, match=r"golden is 0\.5, below min 0\.9"):
        run_in_process(strict, cluster)
    cluster.texts.clear()
    held = changed(job, quality__gates=[{"of": "golden", "min": 0.9, "then": "hold"}])
    for _ in range(2):  # what was staged has its figures
        report = run_in_process(held, cluster)
        assert report.outcome == "held"
        assert report.golden is not None
        assert [(one.of, one.value, one.verdict) for one in report.gates or ()] == [("golden", 0.5, "held")]
    passed = run_in_process(changed(job, quality__gates=[{"of": "golden", "min": 0.4}]), cluster)
    assert passed.outcome == "published"
    assert passed.golden == report.golden
    assert cluster.texts == []


def refusal(job: SliceJob, path: str, **given: Any) -> SliceError:
    cluster = InProcess()
    with pytest.raises(SliceError) as raised:
        run_in_process(with_golden(job, path, **given), cluster)
    assert cluster.answered == 0
    assert raised.value.kind == "input"
    assert raised.value.failure.sentence.startswith("quality.golden: ")
    return raised.value


def test_answers_that_are_published_anew_keep_their_golden_figures(job: SliceJob, tmp_path: Path) -> None:
    cluster = Asks()
    pq.write_table(pa.table({"name": NAMES, "n": range(len(NAMES))}), tmp_path / "in" / "a.parquet")
    job = with_golden(job, write(job))
    first = run_in_process(job, cluster)
    cluster.texts.clear()
    narrow = changed(
        job, columns=["name"], publish__on_schema_change="accept", rerun__on_config_change="recompute"
    )
    assert plan_run(narrow, None).probes == {}
    again = run_in_process(narrow, cluster)
    assert (again.published_version, again.golden, cluster.texts) == (2, first.golden, [])
    other = with_golden(changed(narrow, columns=["n", "name"]), write(job, GOLDEN[:2], "other.jsonl"))
    told = run_in_process(other, cluster).golden
    assert told is not None
    assert (told.accuracy, cluster.texts) == (1, [row["name"] for row in GOLDEN[:2]])


@pytest.mark.parametrize("policy", ["force", "recompute", "extend"])
def test_answers_of_a_run_that_died_are_judged_by_golden_rows_of_their_own(
    job: SliceJob, policy: str, tmp_path: Path
) -> None:
    """And not by the figures of the published version, whose answers they are not."""
    job = with_golden(job, write(job, GOLDEN[:2]), quality__gates=[{"of": "golden", "min": 0.9}])
    assert run_in_process(job).outcome == "published"
    cluster = Asks(answer=answer_with(text="garbage"))
    cluster.ends_at = "known"
    if policy != "force":
        pq.write_table(pa.table({"name": ["new"]}), tmp_path / "in" / "b.parquet")
    again = changed(job, rerun={"force": True} if policy == "force" else {"on_input_change": policy})
    with pytest.raises(KeyboardInterrupt):
        run_in_process(again, cluster)
    cluster.ends_at = None
    cluster.texts.clear()
    plan = plan_run(again, None)
    assert (plan.missing_rows, plan.probes) == (0, {"golden": (2, 2)})
    with pytest.raises(SliceError, match="golden is 0, below min"):
        run_in_process(again, cluster)
    assert cluster.texts == ["known", "known, too"]


def test_held_slice_is_judged_by_the_golden_rows_of_now(job: SliceJob) -> None:
    cluster = Asks()
    held = run_in_process(changed(job, quality__gates=[{"of": "rows", "then": "hold"}]), cluster)
    assert held.outcome == "held"
    with pytest.raises(SliceError, match=r"golden is 0\.5, below min 0\.9"):
        run_in_process(with_golden(job, write(job), quality__gates=[{"of": "golden", "min": 0.9}]), cluster)
    assert cluster.texts == [*NAMES, *(row["name"] for row in GOLDEN)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "golden.jsonl has no row"),
        ([{"name": "a", "right": "b"}], r"none of the answers' columns \('answer'\)"),
        ([{"answer": "b"}], "golden.jsonl lacks the column 'name', which the request reads"),
    ],
)
def test_golden_rows_that_cannot_be_asked_or_compared_are_refused_before_any_row(
    job: SliceJob, rows: list[dict[str, Any]], says: str
) -> None:
    assert refusal(job, write(job, rows)).failure.sentence
    with pytest.raises(SliceError, match=says):
        run_in_process(with_golden(job, write(job, rows)))


def test_golden_rows_are_files_in_an_input_format(job: SliceJob, tmp_path: Path) -> None:
    assert "there is no file at" in str(refusal(job, f"{tmp_path}/nothing.csv"))
    (tmp_path / "golden.csv").write_bytes(b"name,answer\na,b\nc,\xff\n")
    assert "holds text that is not valid" in str(refusal(job, f"{tmp_path}/golden.csv"))
    (tmp_path / "golden.xlsx").touch()
    assert "is Excel, which is not read" in str(refusal(job, f"{tmp_path}/golden.xlsx"))


@pytest.mark.parametrize("wrong", ["z", None])
def test_right_label_is_one_of_the_choices(job: SliceJob, wrong: str | None) -> None:
    path = write(job, [{"name": "a", "answer": "x"}, {"name": "b", "answer": wrong}])
    error = refusal(job, path, choices=["x", "y"])
    assert f"row 2 of {path} has a right answer in column 'answer' that is none of the choices" in str(error)
    assert error.failure.row_texts == (repr(wrong),)
    assert (error.failure.place.file, error.failure.place.row) == (path, 2)


def test_corrected_export_of_a_published_slice_is_one(job: SliceJob, tmp_path: Path) -> None:
    job = changed(job, publish__details=["attempts"])
    first = changed(job, slice_key="2026-01-01")
    run_in_process(first)
    table = pq.read_table(first.slice_path, partitioning=None)
    table = table.append_column("ds", pa.array(["2026-01-01"] * len(NAMES)))
    pq.write_table(table, tmp_path / "export.parquet")
    report = run_in_process(with_golden(job, f"{tmp_path}/export.parquet"))
    assert report.golden is not None
    assert (report.golden.rows, report.golden.accuracy, report.golden.columns) == (25, 1.0, ("answer",))


def test_trial_has_golden_rows(job: SliceJob) -> None:
    report = run_in_process(with_golden(job, write(job), source__max_rows=2))
    assert (report.counts.planned, report.golden and report.golden.rows) == (2, 4)
