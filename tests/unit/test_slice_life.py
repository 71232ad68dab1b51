"""What a run decides before it starts an engine: on real folders, and without a cluster, since none is needed
yet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.processor import publish
from airflow_provider_raydatallm.processor.__main__ import load_spec, main, root_error
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.plan import make_plan
from airflow_provider_raydatallm.processor.run import run_slice, slice_status
from airflow_provider_raydatallm.processor.store import Store
from airflow_provider_raydatallm.spec import Counts, Report, SliceJob


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this is decided without Ray: importing it is an error here."""
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": ["a", "b"]}), tmp_path / "in" / "a.parquet")
    return SliceJob(
        slice_key="2026-01-31",
        input_path=f"{tmp_path}/in/",
        output_path=f"{tmp_path}/out",
        model_source="m/m",
        prompt="{x}",
    )


def changed(job: SliceJob, **given: Any) -> SliceJob:
    return SliceJob.model_validate({**job.model_dump(), **given})


def run(job: SliceJob) -> Report:
    return run_slice(job, lambda progress: None)


def published(job: SliceJob) -> Report:
    """Publish the slice as a run would have, with an answer for each row."""
    plan, store = make_plan(job), Store(job.slice_path)
    report = Report(
        outcome="published", slice_key=job.slice_key, output_path=job.slice_path,
        fingerprint=job.fingerprint(),
        counts=Counts(planned=plan.rows, succeeded=plan.rows),
    )  # fmt: skip
    store.put_bytes("part-00000.parquet", b"")
    publish.write_manifest(store, job, plan, [], report)
    return report


def test_finished_slice_is_a_no_op(job: SliceJob) -> None:
    report = published(job)
    assert run(job) == report.model_copy(update={"outcome": "unchanged"})
    assert run(changed(job, batch_size=7)).outcome == "unchanged"
    assert slice_status(job) == report


def test_changed_configuration_follows_the_policy(job: SliceJob) -> None:
    published(job)
    other = changed(job, prompt="Other {x}")
    with pytest.raises(SliceError, match="on_config_change='recompute'"):
        run(other)
    assert slice_status(other) is None
    with pytest.raises(SliceError, match="is no argument"):  # it went on to the engine's checks
        run(changed(other, on_config_change="recompute", engine_kwargs={"nonsense": 1}))


def test_changed_input_follows_the_policy(job: SliceJob) -> None:
    published(job)
    pq.write_table(pa.table({"x": ["c"]}), Path(job.input_path) / "b.parquet")
    with pytest.raises(SliceError, match=r"then 1 file\(s\), 2 rows; now 2 and 3"):
        run(job)
    with pytest.raises(SliceError, match="is no argument"):
        run(changed(job, on_input_change="recompute", engine_kwargs={"nonsense": 1}))


def test_two_instants_that_share_a_key_are_noticed(job: SliceJob) -> None:
    published(changed(job, slice_instant="2026-01-31T01:00:00+00:00"))
    assert run(job).outcome == "unchanged"
    with pytest.raises(SliceError, match="slice_format '%Y-%m-%d' is too coarse"):
        run(changed(job, slice_instant="2026-01-31T02:00:00+00:00"))


def test_empty_slice_follows_the_policy(job: SliceJob, tmp_path: Path) -> None:
    nothing = changed(job, input_path=f"{tmp_path}/nowhere/")
    with pytest.raises(SliceError, match="matches no file"):
        run(nothing)
    skipped = run(changed(nothing, on_empty="skip"))
    assert (skipped.outcome, skipped.counts.planned) == ("empty", 0)
    assert not Path(job.slice_path).exists()
    assert run(changed(nothing, on_empty="publish")).outcome == "empty"
    assert (Path(job.slice_path) / "_SUCCESS").exists()
    assert pq.read_table(job.slice_path).num_rows == 0


def test_slice_that_became_empty_leaves_no_old_rows_behind(job: SliceJob) -> None:
    published(job)
    (Path(job.input_path) / "a.parquet").unlink()
    report = run(changed(job, on_empty="publish", on_input_change="recompute"))
    assert report.outcome == "empty"
    assert {p.name for p in Path(job.slice_path).iterdir()} == {"_SUCCESS", "_manifest.json", "_report.json"}


def test_empty_slice_of_a_known_table_keeps_its_columns(job: SliceJob) -> None:
    run(changed(job, slice_column="x", slice_key="nobody", on_empty="publish"))
    assert pq.read_table(changed(job, slice_key="nobody").slice_path).schema.names == ["x", "answer"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompt": "{y}"}, r"column 'y'.*Columns: 'x'"),
        ({"system_prompt": "{y}"}, "system_prompt names the column 'y'"),
        ({"output_column": "x"}, "choose another output_column"),
        ({"columns": ["nope"]}, r"columns names \['nope'\]"),
        ({"engine": "nope"}, "engine 'nope' is not known"),
        ({"engine": "json:loads"}, "no subclass"),
        ({"engine_kwargs": {"max_model_length": 3}}, "did you mean 'max_model_len'"),
        ({"sampling_params": {"max_token": 3}}, "did you mean 'max_tokens'"),
        ({"prompt": None, "preprocess": "nowhere:f"}, "Ship its code with code_paths"),
        ({"postprocess": "json:nothing"}, "cannot be loaded"),
        ({"accelerator_type": "L4"}, "CPU build"),
    ],
)
def test_what_cannot_work_is_refused_before_a_cluster_is_asked(
    job: SliceJob, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(SliceError, match=says):
        run(changed(job, **given))
    assert not Path(job.slice_path).exists()


def test_output_inside_the_input_is_refused(job: SliceJob) -> None:
    with pytest.raises(SliceError, match="lies inside the input"):
        run(changed(job, output_path=f"{job.input_path}out"))


def test_trial_run_never_meets_the_published_slice(job: SliceJob) -> None:
    published(job)
    trial = changed(job, max_rows=1)
    assert slice_status(trial) is None
    assert trial.slice_path != job.slice_path


def test_program_says_what_is_wrong_in_one_marked_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"slice_key": "k", "promt": "x"}))
    assert main(["run", str(tmp_path / "spec.json"), "--nonce", "n"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("@ray-llm error n ")
    assert "promt" in out
    with pytest.raises(SliceError, match="cannot read the spec"):
        load_spec(str(tmp_path / "none.json"))


def test_root_error_is_found_under_what_wraps_it() -> None:
    inner = SliceError("the real thing", kind="cluster")
    outer = RuntimeError("task failed")
    outer.cause = inner  # type: ignore[attr-defined]
    wrapped = ValueError("pipeline failed")
    wrapped.__cause__ = outer
    assert root_error(wrapped) == ("cluster", "the real thing")
    assert root_error(KeyError("k")) == ("run", "KeyError: 'k'")
    died = RuntimeError("The actor died:\n  File x\nValueError: no GPU\nfor you")
    died.__cause__ = Exception()
    assert root_error(died) == ("run", "ValueError: no GPU\nfor you")


def test_program_without_a_nonce_speaks_to_people(
    job: SliceJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(job)
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    assert main(["run", str(tmp_path / "spec.json")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["outcome"] == "unchanged"
    assert said.err == "planning\n"
