"""What a failed try leaves: its record in Airflow's database, and the sentence as its log's last line."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferralError
from jinja2 import UndefinedError

from airflow_provider_raydatallm.clusters.embedded.processes import LocalHeadError
from airflow_provider_raydatallm.contract.result.failure import Failure, Place
from airflow_provider_raydatallm.contract.result.failure_patterns import classify
from airflow_provider_raydatallm.exceptions import (
    RayConnectionError,
    RayEngineDiedError,
    RayJobStoppedError,
    RayLLMInputError,
    failure_of,
)
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task.failed_try import FAILURE_KEY, record_failure, show_last, shown
from airflow_provider_raydatallm.task.job.record import DeferredJob, JobRecord
from airflow_provider_raydatallm.task.job.verdict import Failed, to_event
from airflow_provider_raydatallm.task.job.waiter import JobRef
from tests.support.context import context_of
from tests.unit.operators.test_ray_llm_batch import operator, spec_of

DIED = Failure(
    "engine", "the engine died 3 times", advice=("Use nodes with more memory",), cause="OOM\nkilled",
    place=Place(node="n1"), counts={"planned": 9, "finished": 4}, log=("a line", "::endgroup::"),
)  # fmt: skip


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def log(self, level: int, message: str, *args: Any) -> None:
        self.lines.append((level, message % args))

    def debug(self, message: str, *args: Any, exc_info: BaseException | None = None) -> None:
        text = "".join(traceback.format_exception(exc_info)) if exc_info is not None else ""
        self.log(logging.DEBUG, f"{message}\n{text}")

    def info(self, message: str, *args: Any) -> None:
        self.log(logging.INFO, message, *args)

    def warning(self, message: str, *args: Any) -> None:
        self.log(logging.WARNING, message, *args)

    def error(self, message: str, *args: Any) -> None:
        self.log(logging.ERROR, message, *args)


@pytest.fixture(autouse=True)
def ray_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "ray://ray.example.com:8265")


@pytest.fixture
def with_row_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__SHOW_SAMPLES", "true")


def kept(context: Any) -> Failure:
    return Failure.parse(context["ti"].xcoms[FAILURE_KEY])


@pytest.mark.usefixtures("with_row_texts")
def test_the_log_ends_with_why_and_what_to_do_outside_of_all_folds_and_frames_are_for_debugging() -> None:
    """Airflow logs the error itself, root and all, in between."""
    task, log = operator(), Log()
    try:
        raise RayEngineDiedError(DIED)
    except RayEngineDiedError as e:
        failure = record_failure(context_of(task), e, log)
    shown = [text for level, text in log.lines if level >= logging.INFO]
    assert shown == [
        "::group::The end of the Ray job's log", "a line", ": :endgroup::", "::endgroup::",
        "Rows when it failed: 9 planned = 4 answered + 5 left",
    ]  # fmt: skip
    [debug] = [text for level, text in log.lines if level == logging.DEBUG]
    assert "test_failed_try.py" in debug
    # Airflow opens a fold below its own traceback, and calls the callbacks there.
    task.on_failure_callback = ran = [lambda context: log.info("the user's own")]  # type: ignore[list-item]
    show_last(task, Failure("engine", "of the try before"), log)
    show_last(task, failure, log)
    log.lines.clear()
    for callback in task.on_failure_callback:
        callback({})  # type: ignore[arg-type]
    assert len(ran) == 1
    assert [text for _, text in log.lines] == [
        "the user's own", "::endgroup::", "the engine died 3 times", "Use nodes with more memory",
        "Where: node n1",
    ]  # fmt: skip
    assert {level for level, _ in log.lines[2:]} == {logging.ERROR}


def test_run_that_fails_before_its_slice_has_a_record() -> None:
    task = operator(prompt="{{ gone.away }}", slice_key="k")
    context = context_of(task)
    task.render_template_fields(context)
    with pytest.raises(UndefinedError) as raised:
        task.execute(context)
    assert kept(context).sentence == "UndefinedError: 'gone' is undefined"
    links = {link.xcom_key for link in task.operator_extra_links}
    assert {context["ti"].xcoms[key] for key in links} == {""}  # Airflow logs one that is missing as an error
    assert failure_of(raised.value) == kept(context)


def test_error_of_the_provider_reaches_airflow_without_the_frames_that_led_to_it() -> None:
    task = operator()
    context = context_of(task)
    with pytest.raises(RayLLMInputError, match="no slice key") as raised:
        task.execute(context)
    assert kept(context).kind == "input"
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert len([file for file in files if "airflow_provider_raydatallm" in file]) <= 2
    assert raised.value.__suppress_context__


def test_task_that_airflow_stops_says_what_may_have_stopped_it() -> None:
    """A person who marked it did not kill it, and by its own means it cannot know."""
    task = operator()
    task.on_kill()
    with pytest.raises(RayJobStoppedError, match=r"Airflow stopped the task: .*marked or cleared") as raised:
        asyncio.run(task._unless_killed(asyncio.sleep(60)))
    assert "killed" not in str(raised.value)


def deferred(task: RayLLMBatchOperator) -> dict[str, Any]:
    ref = JobRef("ray_default", 5.0, 600.0, None, None, 0.0, "j", "n", cluster="connection:ray_default")
    record = JobRecord("submitted", "connection:ray_default", "j", "n", "h", "f", 1)
    return DeferredJob(ref, spec_of(task), record).to_kwargs()


@pytest.mark.parametrize("setting", ["False", "perhaps"])
def test_nothing_that_may_quote_a_row_enters_airflow_unless_a_setting_allows_it(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__SHOW_SAMPLES", setting)
    of_row = replace(
        DIED,
        cause="Jane Doe",
        row_texts=("'Jane Doe'",),
        log=("Jane Doe was read",),
        place=Place(file="a.csv", row=7),
        frames=("at /srv/post.py:12 in clean: raise ValueError(row)",),
    )
    task, log = operator(slice_key="k"), Log()
    context = context_of(task)
    error = RayEngineDiedError(of_row)
    failure = record_failure(context, error, log)
    show_last(task, failure, log)
    task.on_failure_callback[-1]({})  # type: ignore[index]
    said = f"{context['ti'].xcoms} {error} {log.lines}"
    assert "Jane" not in said
    line, sentence = (text for _, text in log.lines[-5:-3])
    assert line == "at /srv/post.py:12"  # is no text of a row
    assert sentence == of_row.sentence
    assert kept(context).place == of_row.place
    assert "airflow-ray-llm show" in kept(context).advice[-1]


@pytest.mark.parametrize(("root", "says"), [
    ("RuntimeError: Cannot find any model weights with `/m`", "RuntimeError: Cannot find any model weights"),
    ("torch.OutOfMemoryError: CUDA out of memory. Jane", "torch.OutOfMemoryError: CUDA out of memory"),
    ("KeyError: 'Jane Doe'", "KeyError"),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load Jane",
     "OSError: We couldn't connect to 'https://huggingface.co'"),
])  # fmt: skip
def test_error_in_the_words_of_others_says_those_of_a_known_failure(root: str, says: str) -> None:
    assert shown(classify(root)).sentence == says


@pytest.mark.parametrize(("failure", "is_hidden"), [
    (Failure("input", "it is wrong", frames=("at f.py:1 in f: g(row)",), counts={"planned": 9}), False),
    (Failure("engine", "RuntimeError: it died", cause="RuntimeError"), False),
    (Failure("engine", "it died", log=("a line",), log_of="worker 2"), False),
    (Failure("engine", "it died", log=("a line",)), True),
    (Failure("engine", "it died", cause="RuntimeError: of Jane"), True),
    (Failure("input", "a row is wrong", row_texts=("Jane",)), True),
    (classify("KeyError: 'Jane Doe'"), True),
])  # fmt: skip
def test_only_a_record_of_which_something_is_hidden_says_where_that_is(
    failure: Failure, is_hidden: bool
) -> None:
    advice = shown(failure).advice
    assert any("show_samples" in text for text in advice) == is_hidden
    assert shown(shown(failure)) == shown(failure)


@pytest.mark.usefixtures("with_row_texts")
def test_record_of_the_job_comes_whole_through_the_triggerer() -> None:
    task = operator(slice_key="k")
    context = context_of(task)
    with pytest.raises(RayEngineDiedError) as raised:
        task.resume_execution(
            "execute_complete", {"event": to_event(Failed(DIED)), **deferred(task)}, context
        )
    assert (raised.value.failure, kept(context)) == (DIED, DIED)


@pytest.mark.parametrize(("method", "kwargs", "error"), [
    ("__fail__", {"error": "Trigger failure", "traceback": ["boom"]}, TaskDeferralError),
    ("execute_complete", {"event": {"verdict": "TimedOut"}}, AirflowTaskTimeout),
])  # fmt: skip
def test_airflows_own_errors_carry_one_too(
    method: str, kwargs: dict[str, Any], error: type[BaseException]
) -> None:
    task = operator(slice_key="k")
    context = context_of(task)
    given = kwargs if method == "__fail__" else {**kwargs, **deferred(task)}
    with pytest.raises(error) as raised:
        task.resume_execution(method, given, context)
    assert failure_of(raised.value) == kept(context)
    assert kept(context).kind == ("timeout" if error is AirflowTaskTimeout else "transient")


def test_log_of_the_ray_head_is_named_so() -> None:
    log = Log()
    error = LocalHeadError("it ended", log=["a line"])
    record_failure(context_of(operator()), RayConnectionError(error.failure), log)
    assert "::group::The end of the embedded Ray head's log" in [text for _, text in log.lines]


class ReadOnly(Exception):
    @property
    def failure(self) -> Any:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_exception_that_takes_nothing_is_recorded_all_the_same() -> None:
    log, context = Log(), context_of(operator())
    record_failure(context, ReadOnly(), log)
    assert kept(context).sentence == "ReadOnly"


def test_failure_is_told_also_where_airflow_keeps_nothing() -> None:
    log, context = Log(), context_of(operator())
    context["ti"].xcoms = None  # the API server is away
    assert record_failure(context, ValueError("the row"), log).sentence == "ValueError: the row"
    assert len([1 for level, _ in log.lines if level == logging.WARNING]) == 1
