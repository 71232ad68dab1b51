"""What a notifier is handed in the contexts of tasks, DAGs and deadlines. `tests/durable` has Airflow's own
processes make them."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG, BaseNotifier, BaseOperator
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner

from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.notifications import run_slices
from airflow_provider_raydatallm.notifications.slice_notifier import SliceNotifier
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.processor.tables.slice_view import SliceView

PATHS = dict.fromkeys(("table", "metadata", "staging", "quarantine"), "/nowhere")


class Recorder(BaseNotifier):
    template_fields = ("text",)
    sent: ClassVar[list[str]] = []

    def __init__(self, *, text: str, fails: bool = False) -> None:
        super().__init__()
        self.text, self.fails = text, fails

    def notify(self, context: Any) -> None:
        if self.fails:
            raise ConnectionError("the chat is away")
        self.sent.append(self.text)

    async def async_notify(self, context: Any) -> None:
        self.notify(context)


class Run:
    """What Airflow answers of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: dict[str, str | None] = {}
        self.xcoms: dict[tuple[str, int, str], Any] = {}
        self.error: Exception | None = None
        monkeypatch.setattr(BaseXCom, "get_one", self._xcom)
        monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", self._states)
        with DAG("d", schedule=None) as self.dag:
            for task_id in ("ask", "ask_2"):
                RayLLMBatchOperator(
                    task_id=task_id, input_path="/in", output_path="/out", model_source="m", prompt="{a}"
                )
            RayLLMBatchOperator.partial(
                task_id="each", input_path="/in", output_path="/out", model_source="m", prompt="{a}"
            ).expand(slice_key=["x", "y"])
            BaseOperator(task_id="other")

    def _xcom(self, *, key: str, dag_id: str, task_id: str, run_id: str, map_index: int) -> Any:
        if self.error is not None:
            raise self.error
        assert (dag_id, run_id) == ("d", "r")
        return self.xcoms.get((task_id, map_index, key))

    def _states(self, *, dag_id: str, run_ids: list[str], task_ids: list[str] | None) -> dict[str, Any]:
        return {"r": self.states}

    def note(self, task_id: str, map_index: int = -1, **entry: Any) -> None:
        entry = {"slice_key": "k", "paths": PATHS, **entry}
        self.xcoms[task_id, map_index, "ray_llm_slice"] = entry
        self.xcoms[task_id, map_index, "ray_job_url"] = f"http://ray/{task_id}"

    def task(
        self, task_id: str = "ask", state: str | None = "success", error: Any = None, **more: Any
    ) -> Any:
        ti = SimpleNamespace(
            dag_id="d",
            task_id=task_id,
            run_id="r",
            map_index=-1,
            state=TaskInstanceState(state) if state else None,
            task=self.dag.task_dict[task_id],
        )
        return {"ti": ti, "dag": self.dag, "exception": error, **more}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    Recorder.sent.clear()
    return Run(monkeypatch)


def test_task_tells_of_its_own_slice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", "2.5")
    monkeypatch.setenv("AIRFLOW__RAY_LLM__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team")
    counts = {"planned": 3, "succeeded": 2, "quarantined": 1}
    run.note("ask", outcome="published", counts=counts, gpu_seconds=1800.0)
    notifier = SliceNotifier(Recorder, text="{{ slices.text }} {{ ti.task_id }}")
    notifier(run.task())
    notifier(run.task())  # templates are rendered anew each time
    [first, second] = Recorder.sent
    assert first == second
    assert "3 rows planned = 2 answered + 1 in quarantine (33.3%)\n1.25 EUR" in first
    assert "Slice: https://airflow.example.com/team/plugin/ray-llm/dags/d/tasks/ask/runs/r/-1" in first
    assert "Ray job: http://ray/ask" in first


def test_failed_task_says_why_without_a_text_of_a_row_or_a_secret(run: Run) -> None:
    run.note("ask")
    error = RayLLMInputError(Failure("input", "row 7 is wrong, password=sesame", row_texts=("Jane Doe",)))
    SliceNotifier(Recorder, text="{{ slices.text }}{{ slices.html }}")(run.task(state="failed", error=error))
    [text] = Recorder.sent
    assert "slice k failed\nrow 7 is wrong" in text
    assert "Jane" not in text
    assert "sesame" not in text


def test_killed_task_has_no_state_and_no_error_in_the_dag_processor(run: Run) -> None:
    run.note("ask")
    run.states = {"ask": "failed"}
    SliceNotifier(Recorder, text="{{ slices.text }}")(run.task(state=None))
    assert "slice k failed\nThe task left no error of its own" in Recorder.sent[0]


def test_task_that_failed_before_it_knew_its_slice_is_told_of(run: Run) -> None:
    SliceNotifier(Recorder, text="{{ slices.text }}")(run.task(state="failed", error=ValueError("x")))
    assert Recorder.sent[0].startswith(
        "d.ask: the slice failed\nValueError. Clear the task to run it again\n"
    )
    assert "\nTask: http" in Recorder.sent[0]


@pytest.mark.parametrize("is_known", [True, False])
def test_dag_tells_of_all_slices_of_its_run(run: Run, is_known: bool) -> None:
    run.note("ask", outcome="published")
    run.note("ask_2", outcome="unchanged")
    run.note("each", 0, slice_key="x", outcome="published")
    run.note("each", 1, slice_key="y")
    run.states = {
        "ask": "success",
        "ask_2": "success",
        "each_0": "success",
        "each_1": "failed",
        "other": "success",
    }
    context: Any = {"dag": run.dag, "run_id": "r", "reason": "task_failure"}
    if is_known:
        context = {**run.task("other"), **context}  # with the last task
    SliceNotifier(Recorder, text="{{ slices.title }}|{{ slices | map(attribute='task') | join(' ') }}")(
        context
    )
    title, tasks = Recorder.sent[0].split("|")
    assert title == "d: 4 slices: 1 failed, 2 published, 1 unchanged"
    assert tasks == "d.each[1] d.ask d.ask_2 d.each[0]"


@pytest.mark.parametrize("slices", [30, 250])
def test_failed_slices_of_very_many_are_named_first_and_then_those_that_are_not_done(
    run: Run, slices: int
) -> None:
    for i in range(slices):
        run.note("each", i, slice_key=f"k{i}", outcome="published" if i < slices - 2 else None)
    run.states = {f"each_{i}": "success" for i in range(slices)}
    run.states |= {f"each_{slices - 2}": None, f"each_{slices - 1}": "failed"}
    context: Any = {"dag": run.dag, "run_id": "r", "reason": "task_failure"}
    SliceNotifier(Recorder, text="{{ slices.text }}")(context)
    assert "slices: 1 failed, 1 waiting, " in Recorder.sent[0]
    headlines = [line for line in Recorder.sent[0].splitlines() if ": slice k" in line]
    assert headlines[:3] == [
        f"d.each[{slices - 1}]: slice k{slices - 1} failed",
        f"d.each[{slices - 2}]: slice k{slices - 2} waits for a worker",
        "d.each[0]: slice k0 is published",
    ]


@pytest.mark.parametrize("price", ["2,5", "nan", "inf", "-1", ""])
def test_price_that_is_no_number_costs_the_message_nothing_else(
    run: Run, monkeypatch: pytest.MonkeyPatch, price: str
) -> None:
    monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", price)
    run.note("ask", outcome="published", rows_per_s=40.0, counts={"planned": 3}, gpu_seconds=1800.0)
    SliceNotifier(Recorder, text="{{ slices.text }}")(run.task())
    assert "\n40 rows/s\nSlice: " in Recorder.sent[0]


def test_price_that_the_run_knew_is_the_one_that_counts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for price in ("2.5", "0"):
        monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", price)
        run.note("ask", outcome="published", counts={"planned": 3}, gpu_seconds=1800.0, cost=4.5)
        SliceNotifier(Recorder, text="{{ slices.text }}")(run.task())
    assert ["4.50 USD" in text for text in Recorder.sent[-2:]] == [True, True]


def test_run_that_asked_nothing_cost_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the page: its figures are those of the run that published the slice."""
    monkeypatch.setenv("AIRFLOW__RAY_LLM__GPU_HOUR_PRICE", "2.5")
    run.note("ask", outcome="unchanged", counts={"planned": 3, "succeeded": 3}, gpu_seconds=1800.0)
    SliceNotifier(Recorder, text="{{ slices.text }}")(run.task())
    assert "3 rows planned" in Recorder.sent[0]
    assert "USD" not in Recorder.sent[0]


def deadline() -> Any:
    return {"dag_run": {"dag_id": "d", "dag_run_id": "r"}, "deadline": {"deadline_time": "2026-01-31T06:00"}}


@pytest.mark.parametrize(("late_s", "sent"), [(1500, 1), (-60, 0), (None, 1)])
def test_deadline_tells_only_of_a_run_that_may_be_late(
    run: Run, monkeypatch: pytest.MonkeyPatch, late_s: int | None, sent: int
) -> None:
    progress = {
        "step": "publish",
        "planned": 10,
        "rows": 5,
        "rows_per_s": None,
        "late_s": late_s,
        "workers_needed": 2,
    }
    monkeypatch.setattr(SliceView, "progress", lambda view: {**progress, "task": view.task})
    run.note("ask", outcome="published")
    run.note("ask_2")
    run.states = {"ask": "success", "ask_2": "deferred", "other": "running"}

    async def tell() -> None:
        await SliceNotifier(
            f"{__name__}.Recorder", only_if_late=True, text="{{ slices.text }}", context=deadline()
        )

    asyncio.run(tell())
    assert len(Recorder.sent) == sent
    if late_s:
        assert all(
            "1,500 s later than finish_by (2 workers would be in time)" in text for text in Recorder.sent
        )


def test_gates_that_did_not_pass_are_told(run: Run) -> None:
    said = {"truncated": ("warned", 0.5), "rows": ("passed", 3)}
    run.note("ask", outcome="published", counts={"planned": 3}, gates=[
        {"of": name, "value": value, "max": 0.1, "verdict": verdict}
        for name, (verdict, value) in said.items()
    ])  # fmt: skip
    run.states = {"ask": "success"}
    asyncio.run(_tell())
    assert "Gate: truncated is 0.5, above max 0.1 (warned)" in Recorder.sent[-1]
    assert "rows is 3" not in Recorder.sent[-1]


@pytest.mark.parametrize("state", ["awaiting_input", "deferred"])
def test_slice_that_waits_for_a_person_says_so(run: Run, state: str) -> None:
    run.note("ask", outcome="held")
    run.states = {"ask": state}
    asyncio.run(_tell(only_if_late=True))
    assert "waits for a person, who decides whether it is published" in Recorder.sent[-1]


def test_slice_that_waited_when_somebody_marked_its_task_is_as_the_task(run: Run) -> None:
    run.note("ask", outcome="held")
    run.states = {"ask": "success"}
    asyncio.run(_tell())
    assert "waits for a person" not in Recorder.sent[-1]


async def _tell(**given: bool) -> None:
    await SliceNotifier(Recorder, text="{{ slices.text }}", context=deadline(), **given)


def test_storage_that_hangs_or_is_closed_does_not_hold_the_message(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_slices, "_STORAGE_SECONDS", 0.1)
    run.note("ask")
    run.states = {"ask": "deferred"}

    async def tell() -> None:
        await SliceNotifier(Recorder, text="{{ slices.text }}", context=deadline())

    def hang(view: Any) -> None:
        time.sleep(5)

    def refuse(view: Any) -> None:
        raise PermissionError("no")

    for look in (hang, refuse):
        monkeypatch.setattr(SliceView, "progress", look)
        asyncio.run(asyncio.wait_for(tell(), 4))
    assert [text.splitlines()[:2] for text in Recorder.sent] == [
        ["d.ask: slice k is running", text.splitlines()[1]] for text in Recorder.sent
    ]


def test_dead_storage_is_waited_for_once_however_many_slices_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SliceView] = []
    monkeypatch.setattr(run_slices, "_STORAGE_SECONDS", 0.1)
    monkeypatch.setattr(SliceView, "progress", lambda view: (asked.append(view), time.sleep(5)))
    for i in range(50):
        run.note("each", i)
    run.states = {f"each_{i}": "running" for i in range(50)}
    SliceNotifier(Recorder, text="{{ slices.title }}")({"dag": run.dag, "run_id": "r", "reason": "x"})
    assert Recorder.sent == ["d: 50 slices: 50 running"]
    assert len(asked) == 1


def test_message_goes_out_when_airflow_cannot_be_asked(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.error = ConnectionError("the API server is away")
    SliceNotifier(Recorder, text="{{ slices.title }}")(run.task())
    assert Recorder.sent == ["d.ask: the slices' figures could not be read"]
    SliceNotifier(Recorder, only_if_late=True, text="{{ slices.title }}")({})
    assert len(Recorder.sent) == 2


def test_failed_task_is_named_when_airflow_cannot_be_asked(run: Run) -> None:
    run.error = ConnectionError("the API server is away")
    SliceNotifier(Recorder, text="{{ slices.text }}")(run.task(state="failed", error=ValueError("x")))
    [text] = Recorder.sent
    assert text.startswith("d.ask: the slice failed\nValueError. Clear the task to run it again\n")
    assert text.endswith("the slices' figures could not be read")


def test_link_to_the_job_is_one_of_the_web(run: Run) -> None:
    run.note("ask", outcome="published")
    run.xcoms["ask", -1, "ray_job_url"] = "javascript:alert(1)"
    SliceNotifier(Recorder, text="{{ slices.html }}")(run.task())
    assert "javascript" not in Recorder.sent[0]


def test_other_tasks_have_no_slice(run: Run) -> None:
    SliceNotifier(Recorder, text="{{ slices.title }}")(run.task("other"))
    assert Recorder.sent == ["d.other: the task has no slice"]


def test_notifiers_own_error_is_airflows_to_log(run: Run) -> None:
    with pytest.raises(ConnectionError, match="the chat is away"):
        SliceNotifier(Recorder, text="x", fails=True)(run.task())


@pytest.mark.parametrize(("notifier", "arguments"), [
    (Recorder(text="x"), {}), (dict, {}), ("builtins.dict", {}), (Recorder, {}), (Recorder, {"texts": "x"}),
])  # fmt: skip
def test_wrong_notifier_is_refused_with_the_dag(notifier: Any, arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"give a notifier's class|argument"):
        SliceNotifier(notifier, **arguments)
