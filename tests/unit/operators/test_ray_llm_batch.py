from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, ObjectStoragePath, literal
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms, set_supervisor_comms
from airflow.sdk.log import redact
from jinja2 import UndefinedError
from opentelemetry.sdk.trace import TracerProvider

from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.contract.spec.engines.base import ClusterEngine
from airflow_provider_raydatallm.contract.spec.engines.vllm import Vllm
from airflow_provider_raydatallm.contract.spec.leaves import LEAVES_OF
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayConnectionNotFoundError,
    RayJobStoppedError,
    RayLLMInputError,
    RayLLMJobError,
)
from airflow_provider_raydatallm.hooks import lookup
from airflow_provider_raydatallm.operators import groups
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.submit.ray_job import make_submission_id
from airflow_provider_raydatallm.task.job import cancel
from airflow_provider_raydatallm.task.job.record import DeferredJob, JobRecord
from airflow_provider_raydatallm.task.job.verdict import Finished, Unconfirmed, to_event
from airflow_provider_raydatallm.task.job.waiter import JobRef
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY
from tests.support.context import StateStore, context_of
from tests.support.fake_cluster import fake_cluster
from tests.support.paths import ROOT
from tests.support.slice_jobs import spec

HEAVY = ("ray", "torch", "vllm", "pandas", "pyarrow")
DAGS = sorted((ROOT / "dags").glob("*.py"))
#: Identity of the cluster of the connection `ray_default`.
CLUSTER = "connection:ray_default"


@pytest.fixture(autouse=True)
def ray_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://ray.example.com:8265")


#: In place of an upstream task's output.
XCOM = object()


def operator(**given: Any) -> RayLLMBatchOperator:
    arguments: dict[str, Any] = {
        "task_id": "t", "input_path": "/in", "output_path": "/out", "model_source": "m", "prompt": "{a}",
    }  # fmt: skip
    return RayLLMBatchOperator(**{"dag": DAG("d", schedule=None), **arguments, **given})


def spec_of(operator: RayLLMBatchOperator, **context: Any) -> SliceJob:
    return operator.slice_job({**context_of(operator), **context})[0]


@pytest.mark.parametrize(("given", "message"), [
    ({"engine": {"workers": 0}}, "engine.workers.*got 0"), ({"source": {"on_empty": "x"}}, "on_empty"),
    ({"prompt": None}, "prompt is missing"), ({"choices": ["a"]}, "choices"),
    ({"source": {"format": "avro"}}, "source.format"), ({"poll_interval": 0.5}, "poll_interval"),
    ({"source": {"max_rows": -1}}, "source.max_rows"), ({"cancel_on_kill": "false"}, "give True or False"),
    ({"limits": {"reconnect": 0}}, "limits.reconnect is 0: it must be at least 1 second"),
    ({"limits": {"queue": dt.timedelta(seconds=-5)}}, "limits.queue: .* greater than 0"),
    ({"limits": {"orphan": 5}}, "limits.orphan is 5: it must be at least 60 second"),
    ({"limits": {"stall": "1 moon"}}, "limits.stall: '1 moon' is not a duration: give text such as '30m'"),
    ({"limits": {"finish_by": "25:00"}}, "limits.finish_by is '25:00'.*'07:00'"),
    ({"quality": {"max_quarantin": 0.2}}, "quality has no 'max_quarantin': did you mean 'max_quarantine'?"),
    ({"quality": {"repair": 2}}, "quality.repair is for answers that lack their shape, and these have none"),
    ({"quality": {"repair": "twice"}, "regex": "x"}, "quality.repair: .*'twice'"),
    ({"output_mode": "columns"}, "output_mode is 'columns', which is for answers of an output_schema"),
    ({"engine": {"engine_kwargs": {}}}, "engine has no 'engine_kwargs': .*'kwargs'"),
    ({"engine": {"max_model_len": 64}}, "engine has no 'max_model_len'.*arguments stand in engine.kwargs"),
    ({"engine": {5: 1}}, "engine has no '5': it has kind"), ({"rerun": ["keep"]}, "rerun is a list"),
    ({"engine": {"kind": "vlm"}}, "engine.kind: unknown engine 'vlm': use 'auto', 'vllm'"),
    ({"engine": {"workers": "few"}}, "^t: engine.workers: give a number.*'auto' .got 'few'.$"),
    ({"output_schema": EmptyOperator(task_id="up").output}, "output_schema .*cannot come from an upstream"),
    ({"source": "csv"}, "source is 'csv': give a dict with any of format, column"),
    ({"rerun": "always"}, "rerun is 'always': .*'keep', 'recompute', 'extend'"),
    ({"limits": "{{ params.limits }}"}, "limits is '{{ params.limits }}': give a dict, whose values"),
    ({"limits": {"orphan": "07:00"}}, "limits.orphan: '07:00' is not a duration"),
    ({"limits": {"finish_by": "inf"}}, "limits.finish_by"), ({"limits": {"reconnect": "inf"}}, "reconnect"),
    ({"engine": "https://host/v1"}, "engine.kind: 'https://host/v1' is not of the form"),
    ({"accelerator": "L4"}, "accelerator stands in a group: write engine={'accelerator': ...}"),
    ({"adapter_paths": {}}, "write adapter={'paths': ...}"), ({"queue_timeout": 5}, "limits.queue"),
    ({"processor_kwargs": {}}, "engine.processor"), ({"max_row_attempts": 2}, "quality.max_attempts"),
    ({"engine_kwargs": {}}, "engine_kwargs stands in a group: write engine={'kwargs': ...}"),
    ({"execution_timeout": dt.timedelta(0)}, "execution_timeout is .*: it must be at least 1 second"),
    ({"emit_partition": True}, "outlets has none"),
    ({"ray_conn_id": None}, "ray_conn_id is None: give the id of a connection of type 'ray'"),
    ({"model_source": None}, "^t: model_source is missing$"),
    ({"input_path": None}, "input_path is missing"),
    ({"choices": "Law Firm"}, "choices: Input should be a list .got 'Law Firm'.$"),
    ({"source": {"csv": {"sep": ";"}}}, "there is no source.csv.sep: source.csv has delimiter, quote_char"),
    ({"source": {"slice_format": "YYYY-MM-DD"}}, "slice_format 'YYYY-MM-DD' writes each date as"),
    ({"source": {"encoding": "rot13"}}, "source.encoding: 'rot13' is not an encoding of text"),
    ({"sampling_params": {"logit_bias": {"abc": 5}}}, "sampling_params: 'logit_bias' has the key 'abc'"),
    ({"code_paths": "/code"}, "code_paths is '/code': give a list"),
])  # fmt: skip
def test_invalid_argument_fails_when_the_dag_is_parsed(given: dict[str, Any], message: str) -> None:
    with pytest.raises((RayLLMInputError, ValueError, TypeError), match=message):
        operator(**given)


def test_templated_arguments_wait_for_their_rendering() -> None:
    operator(prompt="{{ params.prompt }}", sampling_params={"max_tokens": "{{ 1 }}"})
    operator(
        source={"max_rows": "{{ params.rows }}"}, rerun="{{ params.rerun }}", limits={"stall": "{{ 1 }}h"}
    )
    for engine in ({"kwargs": {"max_model_len": "{{ params.length }}"}}, "{{ params.engine }}", "l4-small"):
        operator(engine=engine, quality={"on_too_long": "truncate"})


def test_schema_class_becomes_a_json_schema_and_template_fields_are_plain() -> None:
    class Answer(pydantic.BaseModel):
        industry: str

    task = operator(output_schema=Answer)
    assert task.output_schema == Answer.model_json_schema()
    json.dumps([getattr(task, name) for name in task.template_fields])


def test_paths_may_be_object_storage_paths() -> None:
    def path(name: str) -> ObjectStoragePath:
        return ObjectStoragePath(f"file:///{{{{ params.x }}}}/{name}")

    beside = {"metadata_path": path("metadata"), "quarantine_path": path("bad")}
    task = operator(input_path=path("in"), output_path=path("out"), publish=beside, slice_key="k")
    task.render_template_fields({"params": {"x": "lake"}})  # type: ignore[typeddict-item]
    job = spec_of(task)
    paths = (job.input_path, job.output_path, job.publish.metadata_path, job.publish.quarantine_path)
    assert paths == ("/lake/in", "/lake/out", "/lake/metadata", "/lake/bad")
    assert operator(output_path="s3://bucket/out").output_path == "s3://bucket/out"
    assert operator(output_path=Path("/data/out")).output_path == "/data/out"
    with pytest.raises(RayLLMInputError, match="input_path 'data' is relative"):
        operator(input_path=Path("data"))


def test_adapters_are_a_folder_or_a_group_and_templates() -> None:
    def job(adapter: Any) -> SliceJob:
        task = operator(slice_key="k", adapter=adapter)
        task.render_template_fields({"params": {"x": "lake"}})  # type: ignore[typeddict-item]
        return spec_of(task)

    one = ("/{{ params.x }}/a", ObjectStoragePath("file:///{{ params.x }}/a"), {"path": "/lake/a"})
    assert {job(adapter).task.lora.path for adapter in one} == {"/lake/a"}
    several = job({"paths": {"n": "/{{ params.x }}/a"}, "column": "c", "on_null": "base"}).task.lora
    assert (several.paths, several.column) == ({"n": "/lake/a"}, "c")
    of_storage = job({"paths": {"n": ObjectStoragePath("file:///a")}, "column": "c"})
    assert of_storage.task.lora.paths == {"n": "/a"}
    with pytest.raises(RayLLMInputError, match="need each other"):
        operator(adapter={"paths": {"n": "/a"}})


def test_folders_beside_the_table_are_templates_and_reach_the_spec() -> None:
    task = operator(
        slice_key="k", output_path="/{{ params.x }}/out", rerun={"verify": "content"},
        publish={"metadata_path": "/{{ params.x }}/meta", "quarantine_path": "/{{ params.x }}/bad"},
    )  # fmt: skip
    task.render_template_fields({"params": {"x": "lake"}})  # type: ignore[arg-type]
    job = spec_of(task)
    assert (job.paths.metadata, job.paths.quarantine) == ("/lake/meta/ds=k", "/lake/bad/ds=k")
    assert (job.rerun.verify, job.publish.keep_versions) == ("content", 1)
    with pytest.raises(RayLLMInputError, match="lies inside the table"):
        operator(publish={"metadata_path": "/out/meta"})


def test_mapped_task_has_airflows_own_defaults() -> None:
    paths = {"input_path": "/in", "output_path": "/out", "model_source": "m"}
    with DAG("d", schedule=None):
        own = RayLLMBatchOperator.partial(task_id="t", prompt="{a}", **paths).expand(slice_key=["k"])
        any_other = EmptyOperator.partial(task_id="o").expand_kwargs([{}])
    defaults = any_other.partial_kwargs.keys() - {"task_id"}
    assert {name: own.partial_kwargs[name] for name in defaults} == {
        name: any_other.partial_kwargs[name] for name in defaults
    }


def test_arguments_may_come_from_upstream_tasks() -> None:
    dag = DAG("d", schedule=None)
    upstream = EmptyOperator(task_id="up", dag=dag).output
    task = operator(
        dag=dag, input_path=upstream, prompt=upstream, limits=upstream, quality={"max_quarantine": upstream}
    )
    assert task.upstream_task_ids == {"up"}
    assert operator(dag=dag, task_id="leaf", engine={"kwargs": {"seed": upstream}}).upstream_task_ids == {
        "up"
    }
    operator(output_path=literal("/out/{{x}}"))


@pytest.mark.parametrize("given", [
    {"choices": "{{ params.x }}", "labels": {"multi": True}},
    {"choices": ["{{ params.x }}", "b"], "labels": {"confidence": True}, "quality": {"repair": 1}},
    {"choices": XCOM, "labels": {"multi": True, "confidence": True}},
    {"choices": ["{{ params.x }}", "b"], "quality": {"gates": [{"of": "label:spam", "max": 0.5}]}},
    {"task": "{{ params.x }}", "quality": {"gates": [{"of": "top_label", "max": 0.5}]}},
    {"quality": {"golden": {"path": "{{ params.x }}"}, "gates": [{"of": "golden", "min": 0.5}]}},
    {"quality": {"repeat": "{{ params.x }}", "gates": [{"of": "repeat", "max": 0.5}]}},
    {"task": "{{ params.x }}", "quality": {"judge": {"model": "m/j", "prompt": "Is {answer} right?"}}},
    {"images": {"column": "{{ params.x }}", "sources": ["/photos"]}},
    {"task": "transcribe", "audio": {"column": "{{ params.x }}", "max_seconds": 60}},
    {"task": "transcribe", "audio": XCOM},
    {"task": "score", "query": "{{ params.x }}"},
    {"task": "{{ params.x }}", "quality": {"on_too_long": "chunk"}, "embedding": {"dtype": "int8"}},
    {"task": "{{ params.x }}", "audio": "recording"},
])  # fmt: skip
def test_what_needs_an_argument_that_is_rendered_later_is_no_error(given: dict[str, Any]) -> None:
    dag = DAG("d", schedule=None)
    upstream = EmptyOperator(task_id="up", dag=dag).output
    operator(dag=dag, **{name: upstream if value is XCOM else value for name, value in given.items()})


@pytest.mark.parametrize(("engine", "says"), [
    ({"profile": "l4", "workers": 0}, "engine.workers.*got 0"),
    ({"profile": "l4", "kwargs": {"max_model_len": "2k"}}, "'2k': a number of tokens"),
    ({"accelerator": "{{ params.x }}", "workers": (4, 2)}, "minimum above its maximum"),
    ({"kind": "m:Mine", "accelerator": "{{ params.x }}", "batch_size": 0}, "engine.batch_size.*got 0"),
    ({"profile": "l4", "cache": "answers"}, "engine.cache: not a folder"),
    ({"profile": "l4", "in_flight": 0}, "engine.in_flight.*got 0"),
    ({"profile": "l4", "in_flight": 5, "workers": 2}, "engine.in_flight is for engine.kind='http'"),
    ({"kind": "http", "url": "{{ params.x }}", "workers": 2}, "engine.workers is for"),
    ({"kind": ["vllm"], "accelerator": "{{ params.x }}"}, "engine.kind is \\['vllm'\\]"),
])  # fmt: skip
def test_leaves_beside_a_profile_or_a_template_are_checked_with_the_dag(engine: Any, says: str) -> None:
    with pytest.raises(RayLLMInputError, match=says):
        operator(engine=engine)


def test_what_a_template_cannot_make_possible_is_refused_with_the_dag() -> None:
    with pytest.raises(RayLLMInputError, match=r"labels\.multi=True is not possible: engine 'ray_data_llm'"):
        operator(choices="{{ params.x }}", labels={"multi": True}, engine="ray_data_llm")
    with pytest.raises(RayLLMInputError, match="exclude each other"):
        operator(choices="{{ params.x }}", regex="a|b")


def test_relative_path_is_refused_as_it_would_be_elsewhere_on_the_cluster() -> None:
    for name in ("input_path", "output_path"):
        with pytest.raises(RayLLMInputError, match=rf"t: {name} 'lake/x' is relative, .* begins with /"):
            operator(**{name: "lake/x"})
    with pytest.raises(RayLLMInputError, match=r"publish.metadata_path 'lake/x' is relative"):
        operator(publish={"metadata_path": "lake/x"})
    task = operator(input_path="{{ params.x }}", slice_key="k")
    task.render_template_fields({"params": {"x": "~/x"}})  # type: ignore[arg-type]
    with pytest.raises(RayLLMInputError, match="input_path '~/x' is relative"):
        task.slice_job(context_of(task))
    assert operator(input_path="file:///in").input_path == "file:///in"


def test_invalid_schema_and_non_json_argument_are_refused() -> None:
    with pytest.raises(ValueError, match="output_schema"):
        operator(output_schema=dict)
    with pytest.raises(RayLLMInputError, match="it holds a object"):
        operator(engine={"kwargs": {"dtype": object()}})


@pytest.mark.parametrize(("schedule", "key"), [
    (CronDataIntervalTimetable("0 0 * * *", timezone="Asia/Taipei"), "2026-01-31"),
    (CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), "2026-01-30"), (None, "2026-01-30"),
])  # fmt: skip
def test_key_is_in_the_schedules_timezone(schedule: Any, key: str) -> None:
    dag = DAG("d", schedule=schedule, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    midnight_in_taipei = dt.datetime(2026, 1, 30, 16, tzinfo=dt.UTC)
    run = SimpleNamespace(run_type=DagRunType.SCHEDULED, conf={})
    job = spec_of(operator(), dag=dag, dag_run=run, data_interval_start=midnight_in_taipei)
    assert job.slice_key == key
    assert job.slice_instant == midnight_in_taipei.isoformat()


def test_backfill_takes_its_days_whatever_its_configuration_says() -> None:
    """Airflow's `DagRunType` equals its name, and its `str()` does not."""
    day, conf = dt.datetime(2026, 1, 30, tzinfo=dt.UTC), {"slice": "2026-01-01"}
    dag = DAG("d", schedule=None, params={"slice": "2026-01-01"})
    run = SimpleNamespace(run_type=DagRunType.BACKFILL, conf=conf)
    job = spec_of(operator(dag=dag, task_id="a"), dag_run=run, params=conf, data_interval_start=day)
    assert (job.slice_key, job.slice_instant) == ("2026-01-30", day.isoformat())
    by_hand = SimpleNamespace(run_type=DagRunType.MANUAL, conf=conf)
    job = spec_of(operator(dag=dag, task_id="b"), dag_run=by_hand, params=conf, data_interval_start=day)
    assert (job.slice_key, job.slice_instant) == ("2026-01-01", None)


@pytest.mark.parametrize(
    ("name", "rendered"),
    [
        ("prompt", "None"),
        ("prompt", " "),
        ("regex", "None"),
        ("system_prompt", "None"),
        ("output_path", "None"),
        ("task", "None"),
    ],
)
def test_template_that_renders_to_nothing_is_refused(name: str, rendered: str) -> None:
    task = operator(**{name: "{{ params.x }}", "slice_key": "k"})
    task.render_template_fields({"params": {"x": rendered}})  # type: ignore[arg-type]
    with pytest.raises(RayLLMInputError, match=f"{name} rendered to {rendered!r}"):
        spec_of(task)


def test_templates_that_cannot_be_rendered_any_more_stop_a_submission_and_no_resume() -> None:
    task = operator(prompt="{{ gone.away }}", slice_key="k")
    context = context_of(task)
    task.render_template_fields(context)
    with pytest.raises(UndefinedError, match="gone"):
        task.execute(context)
    job = spec(slice_key="k", input_path="/in", output_path="/out", model_source="m", prompt="{a}")
    ref = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", cluster=CLUSTER)
    report = {"outcome": "published", "slice_key": "k", "output_path": "o", "fingerprint": "f",
              "counts": {"planned": 1, "succeeded": 1}}  # fmt: skip
    event = to_event(Finished(report))
    record = JobRecord("submitted", CLUSTER, "j", "n", "h", "f", 1)
    kwargs = DeferredJob(ref, job, record).to_kwargs()
    assert task.execute_complete(context, event, **kwargs)["slice_key"] == "k"


def test_template_of_a_mapped_task_that_cannot_be_rendered_any_more_stops_no_resume_either() -> None:
    with DAG("d", schedule=None) as dag:
        arguments: dict[str, Any] = {"input_path": "/in", "output_path": "/out", "model_source": "m"}
        mapped = RayLLMBatchOperator.partial(task_id="t", prompt="{{ gone.away }}", **arguments).expand(
            slice_key=["2026-01-31"]
        )
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=0, task=mapped)
    context: Any = {"dag": dag, "dag_run": SimpleNamespace(conf={}), "params": {}, "ti": ti, "run_id": "r"}
    mapped.render_template_fields(context)
    assert context["task"].slice_key == "2026-01-31"
    with pytest.raises(UndefinedError, match="gone"):
        context["task"].slice_job(context)


@pytest.mark.parametrize(
    ("outcome", "rows", "says"),
    [
        ("empty", 0, "slice 'k' has no rows"),
        ("kept", 200, "slice 'k' has no rows now: the 200 of version 3 stay published"),
    ],
)
def test_task_whose_input_is_empty_is_skipped_and_says_what_stays(outcome: str, rows: int, says: str) -> None:
    task = operator(slice_key="k", source={"on_empty": "skip"}, outlets=[Asset("table")])
    context = context_of(task)
    job = spec_of(task)
    ref = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", cluster=CLUSTER)
    report = {"outcome": outcome, "slice_key": "k", "output_path": "o", "fingerprint": "f",
              "counts": {"planned": rows, "succeeded": rows},
              "published_version": 3 if rows else None}  # fmt: skip
    kwargs = DeferredJob(ref, job, JobRecord("submitted", CLUSTER, "j", "n", "h", "f", 1)).to_kwargs()
    with pytest.raises(AirflowSkipException, match=f"^{says}$"):
        task.execute_complete(context, to_event(Finished(report)), **kwargs)
    assert context["ti"].xcoms[INDEX_KEY]["outcome"] == outcome
    assert context["outlet_events"] == {}


def test_submission_id_is_safe_and_holds_what_makes_it_unique() -> None:
    metadata = {"dag_id": "dag", "task_id": "group.task", "slice_key": "EMEA/a b"}
    assert make_submission_id(metadata, "0195-7") == "dag-group.task-EMEA_a_b-0195-7"


@pytest.mark.slow
def test_parsing_the_example_dags_imports_nothing_heavy() -> None:
    code = (
        f"import sys, runpy; [runpy.run_path(p) for p in {list(map(str, DAGS))!r}]; "
        f"assert 'airflow_provider_raydatallm' in sys.modules; print([m for m in {HEAVY!r} if m in "
        "sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(DAGS) >= 6
    assert process.stdout.splitlines()[-1] == "[]"


def test_job_carries_the_trace_of_its_task() -> None:
    task = operator(slice_key="k")
    assert "traceparent" not in task._build_submission(context_of(task)).metadata
    with TracerProvider().get_tracer("airflow").start_as_current_span("worker.t") as span:
        traceparent = task._build_submission(context_of(task)).metadata["traceparent"]
    assert traceparent.split("-")[1] == f"{span.get_span_context().trace_id:032x}"


def test_model_token_reaches_the_job_and_never_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HUB", '{"conn_type": "generic", "password": "hub-sesame"}')
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", '{"conn_type": "generic"}')
    task = operator(slice_key="k", model_conn_id="hub")
    submission = task._build_submission(context_of(task))
    assert submission.lend_credentials() == {"HF_TOKEN": "hub-sesame"}
    assert "hub-sesame" not in submission.job.model_dump_json() + str(submission.metadata)
    task.model_conn_id = "empty"
    with pytest.raises(RayLLMInputError, match="has no password"):
        task._build_submission(context_of(task)).lend_credentials()


@pytest.mark.parametrize("conn_type", ["huggingface", "http", "generic"])
def test_model_token_is_taken_from_connections_that_hold_one(
    conn_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps({"conn_type": conn_type, "password": "hub-sesame"}))
    task = operator(slice_key="k", model_conn_id="hub")
    assert task._build_submission(context_of(task)).lend_credentials() == {"HF_TOKEN": "hub-sesame"}
    assert redact(f"token={b64encode(b'me:hub-sesame').decode()[4:]}").startswith("token=***")


@pytest.mark.parametrize(
    ("password", "lent"), [("hub-sesame\r\n", "hub-sesame"), ("\n", None), ("hub-\u200bsesame", None)]
)
def test_model_token_is_one_that_a_header_can_carry(
    password: str, lent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps({"conn_type": "generic", "password": password}))
    task = operator(slice_key="k", model_conn_id="hub")
    if lent is not None:
        assert task._build_submission(context_of(task)).lend_credentials() == {"HF_TOKEN": lent}
        return
    with pytest.raises(RayLLMInputError, match="password") as caught:
        task._build_submission(context_of(task)).lend_credentials()
    assert "sesame" not in str(caught.value)


def test_key_of_an_endpoint_is_lent_for_its_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "conn_type": "http",
        "host": "https://llm.example.com",
        "port": 443,
        "password": "sk-sesame",
    }
    monkeypatch.setenv("AIRFLOW_CONN_LLM", json.dumps(connection))

    def lent(url: str) -> dict[str, str]:
        task = operator(slice_key="k", model_conn_id="llm", engine={"kind": "http", "url": url})
        submission = task._build_submission(context_of(task))
        assert "sk-sesame" not in submission.job.model_dump_json() + str(submission.metadata)
        return submission.lend_credentials()

    assert lent("https://llm.example.com/v1") == {"RAY_LLM_ENDPOINT_API_KEY": "sk-sesame"}
    for url in (
        "https://evil.example.com/v1", "https://llm.example.com.evil.com", "http://127.0.0.1/v1",
        "https://llm.example.com:8443/v1",
    ):  # fmt: skip
        with pytest.raises(RayLLMInputError, match=r"for the host 'llm\.example\.com' and port 443, ") as e:
            lent(url)
        assert "sesame" not in str(e.value)
    connection.pop("port")
    monkeypatch.setenv("AIRFLOW_CONN_LLM", json.dumps(connection))
    assert lent("https://llm.example.com:8443/v1")
    monkeypatch.setenv("AIRFLOW_CONN_LLM", "http://:sk-sesame@[fd00::5]:8000")
    assert lent("https://[fd00::5]:8000/v1")
    connection.pop("host")
    monkeypatch.setenv("AIRFLOW_CONN_LLM", json.dumps(connection))
    with pytest.raises(RayLLMInputError, match="is for the host None"):
        lent("https://llm.example.com/v1")


@pytest.mark.parametrize("engine", [
    {"kind": "http", "url": "{{ params.url }}"}, {"kind": "http", "url": "https://h", "in_flight": "{{ 1 }}"},
    {"profile": "llm", "token_budget": 5}, {"kind": "{{ params.kind }}", "url": "https://h"},
])  # fmt: skip
def test_leaves_of_an_endpoint_may_come_later(engine: dict[str, Any]) -> None:
    operator(engine=engine)
    with pytest.raises(RayLLMInputError, match=r"engine\.token_budget is for engine\.kind='http'"):
        operator(engine={"token_budget": 5})


@pytest.mark.parametrize("conn_type", ["postgres", "aws", "ray", "ssh"])
def test_password_of_another_kind_of_connection_never_leaves_airflow(
    conn_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": conn_type, "password": "db-sesame"}))
    task = operator(slice_key="k", model_conn_id="db")
    with pytest.raises(RayLLMInputError, match=f"'db' is of type '{conn_type}': .* 'huggingface'") as e:
        task._build_submission(context_of(task)).lend_credentials()
    assert "sesame" not in str(e.value)
    task.model_conn_id = "nowhere"
    with pytest.raises(RayConnectionNotFoundError, match="there is no connection 'nowhere'"):
        task._build_submission(context_of(task)).lend_credentials()


@pytest.mark.parametrize(("given", "place"), [
    ({"engine": {"kwargs": {"hf_token": "hf_sesame"}}}, r"engine.kwargs\['hf_token'\]"),
    ({"engine": {"kwargs": {"hf_token": "{{ conn.sesame.password }}"}}}, r"engine.kwargs\['hf_token'\]"),
    ({"runtime_env": {"env_vars": {"API_KEY": "sesame"}}}, r"runtime_env\['env_vars'\]\['API_KEY'\]"),
    ({"engine": {"processor": {"runtime_env": {"env_vars": {"HF_TOKEN": "sesame"}}}}}, "engine.processor"),
    ({"model_source": "s3://KEY:sesame/x@bucket/model"}, "model_source"),
])  # fmt: skip
def test_secrets_in_arguments_are_refused_when_the_dag_is_parsed(given: dict[str, Any], place: str) -> None:
    with pytest.raises(RayLLMInputError, match=f"^t: {place}.*model_conn_id") as e:
        operator(**given)
    assert "sesame" not in str(e.value)


def test_secrets_that_templates_bring_are_refused_before_anything_is_sent() -> None:
    task = operator(slice_key="k")
    task.engine = {"kwargs": {"hf_token": "hf_sesame"}}
    with pytest.raises(RayLLMInputError, match="looks like a secret") as e:
        task._build_submission(context_of(task))
    assert "sesame" not in str(e.value)


@pytest.mark.parametrize(("host", "given", "scope"), [
    ("ray://local", {}, "shared"), ("ray://local", {"engine": {"scope": "slice"}}, "slice"),
    ("ray://local", {"engine": "ray_data_llm"}, "slice"),
    ("ray://local", {
        "quality": {"on_too_long": "raise_limit"}, "engine": {"kwargs": {"max_model_len": 64}},
    }, "slice"),
    ("ray://ray.example.com:8265", {}, "slice"),
    ("ray://ray.example.com:8265", {"engine": {"scope": "shared"}}, "shared"),
])  # fmt: skip
def test_engine_is_shared_on_an_embedded_ray_unless_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch, host: str, given: dict[str, Any], scope: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", host)
    task = operator(slice_key="k", **given)
    assert task._build_submission(context_of(task)).job.engine.is_shared is (scope == "shared")


@pytest.mark.parametrize(("given", "seconds"), [
    ({}, 600), ({"idle_timeout": dt.timedelta(minutes=1)}, 60), ({"idle_timeout": "1h30m"}, 5400),
    ({"idle_timeout": None}, None), ({"idle_timeout": "never"}, None),
])  # fmt: skip
def test_engine_idle_timeout_reaches_the_spec_as_seconds(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], seconds: float | None
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://ray.example.com:8265")
    job = spec_of(operator(slice_key="k", engine=given))
    assert job.engine_as(Vllm).idle_timeout == seconds


def test_resume_concludes_whatever_became_of_the_dag_and_its_connections() -> None:
    """Nothing that only submitting needs is there any more: the connections, and the DAG as it was."""
    submitted = spec_of(operator(output_path="/tables/out", slice_key="2026-01-30"))
    ref = JobRef("ray_gone", 5.0, 600.0, None, None, 0.0, "j", "n", "http://ray/j", "connection:ray_gone")
    record = JobRecord("submitted", "connection:ray_gone", "j", "n", "h", "f", 1)
    kwargs = json.loads(json.dumps(DeferredJob(ref, submitted, record).to_kwargs()))
    edited = operator(
        output_path="/elsewhere", ray_conn_id="ray_gone", storage_conn_id="aws_gone", model_conn_id="hub_gone"
    )
    report = {
        "outcome": "published", "slice_key": submitted.slice_key, "output_path": submitted.slice_path,
        "fingerprint": "f", "published_version": 3, "counts": {"planned": 1, "succeeded": 1},
    }  # fmt: skip
    event = to_event(Finished(report))
    result = edited.execute_complete(context_of(edited), event, **kwargs)
    assert result["report_path"] == submitted.paths.report(3)
    assert (result["ray_job_id"], result["dashboard_url"]) == ("j", "http://ray/j")
    # Of what another version kept nothing can be concluded: the task has to be built anew.
    with pytest.raises(RayLLMInputError, match="no slice key"):
        edited.execute_complete(context_of(edited), event, **{**kwargs, "spec": {"unknown": 1}})


def test_task_defers_unless_a_test_of_the_dag_runs_it() -> None:
    """A triggerer that lives beside `airflow dags test` would run the trigger too, and stop the job."""
    task = operator(deferrable=True)
    assert task._defers
    assert not operator(deferrable=False)._defers
    test_process: Any = SimpleNamespace()
    with set_supervisor_comms(InProcessSupervisorComms(supervisor=test_process)):
        assert not task._defers


def test_verdict_that_another_version_wrote_is_asked_of_the_job_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = operator(slice_key="k", deferrable=True)
    job = spec_of(task)
    ref = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", cluster=CLUSTER)
    record = JobRecord("submitted", CLUSTER, "j", "n", "h", "f", 1)
    kwargs = DeferredJob(ref, job, record).to_kwargs()
    report = {
        "outcome": "published", "slice_key": "k", "output_path": job.slice_path, "fingerprint": "f",
        "published_version": 1, "counts": {"planned": 1, "succeeded": 1},
    }  # fmt: skip
    with fake_cluster() as cluster:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", f'{{"conn_type": "ray", "host": "{cluster.address}"}}')
        cluster.status, cluster.log = "SUCCEEDED", [encode_line("report", "n", report)]
        for event in ({"verdict": "Paused"}, {**to_event(Finished(report)), "a_field_of": "the future"}, {}):
            result = task.execute_complete(context_of(task), event, **kwargs)
            assert (result["outcome"], result["ray_job_id"]) == ("published", "j")
        with pytest.raises(RayLLMJobError, match="cannot read what the triggerer says"):
            task.execute_complete(context_of(task), {})


def test_job_that_may_never_publish_is_stopped_and_the_task_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator(slice_key="k", deferrable=True)
    record = JobRecord("submitted", CLUSTER, "j", "n", "h", "f", 1)
    monkeypatch.setattr(cancel, "_read_owner_and_state", lambda attempt: (None, "running"))
    with fake_cluster() as cluster:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", f'{{"conn_type": "ray", "host": "{cluster.address}"}}')
        ref = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", cluster=CLUSTER)
        kwargs = DeferredJob(ref, spec_of(task), record).to_kwargs()
        event = to_event(Unconfirmed("Airflow no longer wants this task to wait for it"))
        with pytest.raises(RayJobStoppedError, match=r"Airflow no longer wants .* published nothing"):
            task.execute_complete(context_of(task), event, **kwargs)
        assert cluster.count("POST /api/jobs/j/stop") == 1


@pytest.mark.slow
@pytest.mark.parametrize("deferrable", [False, True])
def test_next_try_that_gets_no_credentials_finds_the_ended_job_all_the_same_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    task, store = operator(slice_key="k", model_conn_id="hub", deferrable=deferrable), StateStore()
    report = {
        "outcome": "published", "slice_key": "k", "output_path": spec_of(task).slice_path, "fingerprint": "f",
        "published_version": 1, "counts": {"planned": 1, "succeeded": 1},
    }  # fmt: skip
    with fake_cluster() as cluster:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", f'{{"conn_type": "ray", "host": "{cluster.address}"}}')
        monkeypatch.setenv("AIRFLOW_CONN_HUB", '{"conn_type": "huggingface", "password": "hub-sesame"}')
        task._build_tracker(context_of(task, store), None).submit()
        [job] = cluster.jobs
        assert job["runtime_env"]["env_vars"]["HF_TOKEN"] == "hub-sesame"
        job["status"], cluster.log = "SUCCEEDED", [encode_line("report", job["metadata"]["nonce"], report)]
        monkeypatch.delenv("AIRFLOW_CONN_HUB")
        monkeypatch.setattr(lookup, "NOT_FOUND_SECONDS", 0.0)
        result = task.execute(context_of(task, store, try_number=2))
        assert (result["outcome"], result["ray_job_id"]) == ("published", job["submission_id"])
        with pytest.raises(RayConnectionNotFoundError, match="no connection 'hub'"):
            task.execute(context_of(task, store, try_number=2, clears=1))
        assert len(cluster.jobs) == 1


def test_rendered_text_becomes_what_the_argument_needs() -> None:
    task = operator(
        quality={
            "max_quarantine": "{{ params.share }}", "repair": 2,
            "gates": [{"of": "truncated", "max": "{{ params.share }}", "against": "{{ params.workers }}"}],
        },
        slice_key="k",
        regex="{{ params.regex }}",
        engine={
            "workers": "{{ params.workers }}", "kwargs": {"hf_overrides": {"tie": "{{ not params.force }}"}},
        },
        limits={"stall": "{{ params.stall }}"},
        sampling_params={"seed": "{{ params.workers }}", "extra_args": {"text": "{{ params.workers }}"}},
        rerun={"force": "{{ params.force }}", "on_config_change": "{{ params.change }}"},
        chat_template_kwargs={"enable_thinking": "{{ not params.force }}", "day": "20260131"},
    )  # fmt: skip
    params = {
        "share": 0.12, "force": True, "regex": "a|b", "workers": 4, "change": "recompute", "stall": "2h",
    }  # fmt: skip
    task.render_template_fields({"params": params})  # type: ignore[typeddict-item]
    job = spec_of(task)
    asked = job.task_as(Generate)
    assert (job.quality.max_quarantine, job.rerun.force, asked.regex) == (0.12, True, "a|b")
    assert [(gate.max, gate.against) for gate in job.quality.gates] == [(0.12, 4)]
    workers = job.engine_as(ClusterEngine).workers
    assert (workers, job.rerun.on_config_change, job.limits.stall) == (4, "recompute", 7200)
    assert job.engine.arguments == {"hf_overrides": {"tie": False}}
    assert asked.sampling_params == {"seed": 4, "extra_args": {"text": "4"}}
    # To a chat template the text "False" is true; numbers it prints as they are written.
    assert asked.chat_template_kwargs == {"enable_thinking": False, "day": "20260131"}
    wrong = operator(quality={"max_quarantine": "{{ params.share }}"}, slice_key="k")
    wrong.render_template_fields({"params": {"share": "a lot"}})  # type: ignore[typeddict-item]
    with pytest.raises(RayLLMInputError, match=r"quality.max_quarantine.*'a lot'"):
        spec_of(wrong)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("preprocess", "{{ params.f }}"), ("engine", "my.{{ params.e }}:Engine"),
        ("engine", {"kind": "my.{{ params.e }}:Engine"}), ("deferrable", "{{ params.d }}"),
        ("cancel_on_kill", "{{ params.c }}"), ("code_paths", ["{{ params.p }}"]),
        ("runtime_env", {"pip": ["{{ params.p }}"]}),
        ("engine", {"kwargs": {"trust_remote_code": "{{ params.t }}"}}), ("log", "{{ params.l }}"),
        ("engine", {"processor": {"map": {"runtime_env": "{{ params.t }}"}}}),
        ("engine", {"kwargs": {"speculative_config": {"method": "custom_class", "model": "{{ params.m }}"}}}),
        ("allow_static_credentials", "{{ params.a }}"),
    ],
)  # fmt: skip
def test_template_that_nobody_renders_is_refused_when_the_dag_is_parsed(argument: str, value: Any) -> None:
    given = {argument: value, **({"prompt": None} if argument == "preprocess" else {})}
    with pytest.raises((RayLLMInputError, ValueError), match=argument):
        operator(**given)


@pytest.mark.parametrize("rendered", [
    "evil:Engine", {"kind": "evil:Engine"}, {"kwargs": {"trust_remote_code": True}},
    {"processor": {"preprocess_map_kwargs": {"runtime_env": {"working_dir": "https://evil/a.zip"}}}},
    {"kwargs": {"model_class_overrides": {"LlamaForCausalLM": "evil:Model"}}},
    {"kwargs": {"speculative_config": {"method": "custom_class", "model": "evil.Proposer"}}},
    {"kwargs": {"spec_method": "custom_class", "spec_model": "evil.Proposer"}},
    {"kwargs": {"speculative_config": ' {"method": "custom_class", "model": "evil.Proposer"}'}},
    {"kwargs": {"hf_overrides": '{"a": [{"trust_remote_code": true}]}'}},
    {"processor": {"chat_template_stage": '{"runtime_env": {"pip": ["evil"]}}'}},
    {"kwargs": {"ec_manager_config": {"encoder_cache_manager_cls": "evil.Manager"}}},
])  # fmt: skip
def test_run_cannot_choose_the_code_of_an_engine(rendered: Any) -> None:
    task = operator(engine="{{ params.engine }}", slice_key="k")
    task.engine = rendered
    with pytest.raises(RayLLMInputError, match="which code runs"):
        spec_of(task)
    own = {"kwargs": {"trust_remote_code": True}, "kind": "ray_data_llm"}
    assert spec_of(operator(engine=own, slice_key="k")).engine.arguments == {"trust_remote_code": True}


@pytest.mark.parametrize("rendered", [
    [{"of": "evil:check", "max": 1}], '[{"of": "evil:check", "max": 1}]', "[{'of': 'evil:check', 'max': 1}]",
    [{"of": "own:check", "max": 1}, {"of": "evil:check", "max": 1}],
])  # fmt: skip
def test_run_cannot_choose_the_code_of_a_gate(rendered: Any) -> None:
    own = {"gates": [{"of": "own:check", "max": "{{ params.most }}"}]}
    for written in ({"gates": "{{ params.gates }}"}, own):
        task = operator(quality=written, slice_key="k")
        task.quality = {"gates": rendered}
        with pytest.raises(RayLLMInputError, match="which code runs"):
            spec_of(task)
    task = operator(quality=own, slice_key="k", code_paths=[])
    task.quality = {"gates": [{"of": "own:check", "max": "3"}]}  # another limit may be rendered
    assert spec_of(task).quality.functions == ["own:check"]


def test_code_of_a_gate_is_sent_and_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_answers", "own_gates"):
        (tmp_path / f"{name}.py").write_text("def function(row): ...")

    def sent(gate: str | None) -> tuple[str, set[str]]:
        gates = [] if gate is None else [{"of": gate, "max": 1}]
        task = operator(slice_key="k", postprocess="own_answers:function", quality={"gates": gates})
        job, sent = task.slice_job(context_of(task))
        return job.code_hash, {package.digest for package in sent}

    code_hash, alone = sent(None)
    assert code_hash
    assert sent("own_answers:function") == (code_hash, alone)
    same_hash, more = sent("own_gates:function")
    assert same_hash == code_hash
    assert len(alone) == 1 < len(more) == 2


def test_mapped_task_cannot_choose_code_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://ray.example.com:8265")
    own = {"engine": {"kwargs": {"trust_remote_code": True}}, "code_paths": [str(ROOT / "dags")]}
    with DAG("d", schedule=None, default_args=own) as dag:
        partial = RayLLMBatchOperator.partial(
            task_id="t", input_path="/in", output_path="/out", model_source="m", prompt="{a}", slice_key="k"
        )
        partial.expand(quality=[{"max_attempts": 2}])
    mapped: Any = dag.get_task("t")

    def spec(**expanded: Any) -> SliceJob:
        task = mapped.unmap(expanded)
        return spec_of(task, **{**context_of(operator()), "dag": dag})

    job = spec(quality={"max_attempts": 2})
    assert (job.quality.max_attempts, job.engine.arguments) == (2, {"trust_remote_code": True})
    for code in (
        {"engine": {"kind": "evil:Engine"}},
        {"postprocess": "os:system"},
        {"code_paths": ["/evil"]},
    ):
        with pytest.raises(RayLLMInputError, match="which code runs"):
            spec(**code)


def test_profile_is_the_connections_and_leaves_override_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def has(**engines: Any) -> None:
        connection = {"conn_type": "ray", "host": "http://ray:8265", "extra": {"engines": engines}}
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(connection))

    small = {"accelerator": "L4", "workers": 2, "kwargs": {"max_model_len": 512, "seed": 1}}
    has(small=small, big={"accelerator": "H100"})
    job = spec_of(operator(engine="small", slice_key="k"))
    assert (job.engine.kind, job.engine.gpu, job.engine_as(ClusterEngine).workers) == ("vllm", "L4", 2)
    changed = {"profile": "small", "workers": 3, "kwargs": {"seed": 2}}
    job = spec_of(operator(engine=changed, slice_key="k"))
    assert (job.engine.gpu, job.engine_as(ClusterEngine).workers) == ("L4", 3)
    assert job.engine.arguments == {"max_model_len": 512, "seed": 2}
    with pytest.raises(RayLLMInputError, match=r"'smal' is neither .* it has 'big', 'small'"):
        spec_of(operator(engine="smal", slice_key="k"))
    has(small={**small, "kind": "evil:Engine"})
    with pytest.raises(RayLLMInputError, match=r"engine.kind: .*which code runs"):
        spec_of(operator(engine="small", slice_key="k"))
    has(small={"acelerator": "L4"})
    with pytest.raises(RayLLMInputError, match=r"engine has no 'acelerator': did you mean 'accelerator'?"):
        spec_of(operator(engine="small", slice_key="k"))
    has(vllm=small)
    with pytest.raises(RayConnectionError, match="'vllm' is the name of an engine"):
        spec_of(operator(engine="small", slice_key="k"))
    has(small={"accelerator": "{{ params.gpu }}", "processor": {"chat_template_stage": "{{ messages }}"}})
    with pytest.raises(RayConnectionError, match="'small' holds a template, which nobody renders"):
        spec_of(operator(engine="small", slice_key="k"))


def test_price_of_a_gpu_is_the_engines_else_the_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {"dear": {"gpu_hour_price": "4.5"}, "plain": {"accelerator": "L4"}}
    connection = {"conn_type": "ray", "host": "http://ray:8265", "extra": {"engines": engines}}
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(connection))

    def price(engine: Any, **given: Any) -> float | None:
        return spec_of(operator(engine=engine, slice_key="k", **given)).engine.gpu_price

    endpoint = {"kind": "http", "url": "https://h/v1"}
    assert [price(engine) for engine in ("dear", "plain", "vllm", endpoint)] == [4.5, None, None, None]
    limited = {"limits": {"max_cost": 20}}
    assert price("dear", **limited) == 4.5
    with pytest.raises(RayLLMInputError, match=r"max_cost is 20, and what a GPU costs .* set engine\."):
        price("plain", **limited)  # when the task starts: the DAG does not have the profile
    for engine, reason in ("auto", r"\[ray_llm\] gpu_hour_price"), (endpoint, "holds no GPUs .* leave it"):
        with pytest.raises(RayLLMInputError, match=reason):
            operator(engine=engine, **limited)
        with pytest.raises(RayLLMInputError, match=f"gate of 'cost', and .*{reason}"):
            operator(engine=engine, quality={"gates": [{"of": "cost", "max": 3}]})
    monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", "2.5")
    assert price("auto", quality={"gates": [{"of": "cost", "max": 3}]}) == 2.5
    assert [price(engine) for engine in ("dear", "plain", "m:Engine", endpoint)] == [4.5, 2.5, 2.5, None]
    assert price("plain", **limited) == price({"kind": "auto"}, **limited) == 2.5
    with pytest.raises(RayLLMInputError, match="max_cost"):
        operator(limits={"max_cost": 0})


def test_profile_and_leaves_that_are_not_given_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {"none": {"kwargs": None}, "small": {"kwargs": {"seed": 1}}, "wrong": {"kwargs": "seed"}}
    connection = {"conn_type": "ray", "host": "http://ray:8265", "extra": {"engines": engines}}
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(connection))

    def kwargs(**engine: Any) -> Any:
        return spec_of(operator(engine=engine, slice_key="k")).engine.arguments

    assert (
        kwargs(profile="none", kwargs={"seed": 2}) == kwargs(profile=None, kwargs={"seed": 2}) == {"seed": 2}
    )
    assert kwargs(profile="small", kwargs=None) == {"seed": 1}
    with pytest.raises(RayLLMInputError, match=r"engine.kwargs is a str: give a dict"):
        kwargs(profile="wrong", kwargs={"seed": 1})
    with pytest.raises(RayLLMInputError, match=r"engine.profile is \['small'\]: give the name"):
        kwargs(profile=["small"])


def test_prompt_may_be_a_file_beside_the_dag(tmp_path: Path) -> None:
    (tmp_path / "ask.jinja").write_text("In {{ params.x }}: {a}")
    dag = DAG("d", schedule=None, template_searchpath=[str(tmp_path)])
    task = operator(dag=dag, prompt="ask.jinja", choices=["README.md", "b"], slice_key="k")
    task.resolve_template_files()
    task.render_template_fields({"params": {"x": "short"}})  # type: ignore[typeddict-item]
    job = spec_of(task)
    assert (job.task.prompt, job.task_as(Generate).choices) == ("In short: {a}", ("README.md", "b"))


@pytest.mark.parametrize("given", [
    {"prompt": "prompts/ask.txt"}, {"prompt": " ask.MD\n"}, {"prompt": "ask.j2"}, {"prompt": "ask.JINJA"},
    {"prompt": "ask.jinja "}, {"prompt": "s3://b/ask.jinja2"}, {"system_prompt": "system.txt"},
    {"task": "score", "prompt": "{a}", "query": "query.md"},
])  # fmt: skip
def test_prompt_that_names_a_file_which_is_not_read_is_refused(given: dict[str, Any]) -> None:
    name, text = list(given.items())[-1]
    with pytest.raises(RayLLMInputError, match=rf"{name} is .* '\.jinja'"):
        operator(**given)
    task = operator(**{**given, name: "{{ params.text }}"}, slice_key="k")
    setattr(task, name, text.replace(" ", ""))
    with pytest.raises(RayLLMInputError, match=rf"{name} is .* '\.jinja'"):
        spec_of(task)


@pytest.mark.parametrize("given", [
    {}, {"system_prompt": "Be brief."}, {"task": "embed"}, {"task": "score", "query": "x"},
    {"sampling_params": {"seed": 1}}, {"adapter": "s3://b/adapter"},
])  # fmt: skip
def test_prompt_without_anything_of_the_row_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(RayLLMInputError, match="prompt names no column"):
        operator(prompt="What industry is Company?", **given)
    task = operator(prompt="{{ params.prompt }}", slice_key="k", **given)
    task.prompt = "What industry is Company?"
    with pytest.raises(RayLLMInputError, match="prompt names no column"):
        spec_of(task)


@pytest.mark.parametrize("given", [
    {"images": "photo"}, {"system_prompt": "Sort {a}."}, {"sampling_params": {"seed": "{a}"}},
    {"task": "transcribe", "audio": "call"}, {"task": "score", "query": "{a}"},
    {"adapter": {"column": "a", "paths": {"x": "s3://b/x"}}},
])  # fmt: skip
def test_prompt_may_be_the_same_where_rows_bring_something_else(given: dict[str, Any]) -> None:
    assert spec_of(operator(prompt="Describe it.", slice_key="k", **given)).task.prompt == "Describe it."


@pytest.mark.parametrize("given", [
    {"images": {"column": "{{ params.images }}"}}, {"system_prompt": "system.jinja"},
    {"task": "{{ params.task }}"}, {"sampling_params": {"seed": "{{ params.seed }}"}},
    {"prompt": "ask.jinja"}, {"prompt": literal("x")},
])  # fmt: skip
def test_what_is_rendered_later_may_name_a_column(given: dict[str, Any]) -> None:
    operator(**{"prompt": "Describe it.", **given})


def test_groups_have_the_leaves_that_their_types_have() -> None:
    types = {name: getattr(groups, name.capitalize()) for name in LEAVES_OF}
    assert {name: set(t.__annotations__) for name, t in types.items()} == {
        name: set(leaves) for name, leaves in LEAVES_OF.items()
    }


def test_group_that_a_text_alone_names_may_be_a_template() -> None:
    made = operator(images="{{ params.column }}")
    assert made.images == "{{ params.column }}"
