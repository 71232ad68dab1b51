"""The line of held submissions, without a cluster: who is called, and when."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raydatallm.task.queue.line import Line, waits_for


def line_of(*tasks: str) -> Line:
    line = Line()
    for i, task in enumerate(tasks):
        line.join(task, since=float(i))
    return line


def called(line: Line, tasks: Iterable[str]) -> list[str]:
    return [task for task in tasks if line.is_called(task)]


def test_free_places_go_to_those_that_came_first() -> None:
    line = line_of("a", "b", "c", "d")
    line.call(places=3, waiting=1, submitted=(), now=0)
    assert called(line, "abcd") == ["a", "b"]
    assert [line.ahead("c"), line.ahead("d")] == [0, 1]


def test_nobody_is_called_while_as_many_jobs_wait_as_may_or_more() -> None:
    line = line_of("a")
    line.call(places=2, waiting=2, submitted=(), now=0)
    line.call(places=2, waiting=5, submitted=(), now=10)
    assert called(line, "a") == []


def test_place_of_a_called_task_is_kept_until_its_job_is_there() -> None:
    line = line_of("a", "b")
    line.call(places=1, waiting=0, submitted=(), now=0)
    line.call(places=1, waiting=0, submitted=(), now=10)
    assert called(line, "ab") == ["a"]
    line.call(places=1, waiting=0, submitted={"a"}, now=20)  # it is there, and has had its turn
    assert called(line, "ab") == ["a", "b"]


def test_called_task_that_never_submits_keeps_nobody_waiting_for_long() -> None:
    line = line_of("a", "b")
    line.call(places=1, waiting=0, submitted=(), now=0)
    line.call(places=1, waiting=0, submitted=(), now=40)
    assert called(line, "ab") == ["a", "b"]


def test_tasks_of_a_dag_that_does_not_come_keep_no_place_and_are_tried_one_by_one() -> None:
    tasks = ["p/1", "p/2", "p/3", "p/4", "d/1", "d/2", "d/3"]
    line = line_of(*tasks)
    line.call(places=2, waiting=0, submitted=(), now=0)
    assert called(line, tasks) == ["p/1", "p/2"]
    line.call(places=2, waiting=0, submitted=(), now=40)
    assert called(line, tasks) == ["p/1", "p/2", "p/3", "d/1", "d/2"]
    assert (line.places_kept, line.ahead("d/3"), line.stands_aside("p/4")) == (2, 0, True)
    line.call(places=2, waiting=1, submitted={"d/1", "d/2"}, now=50)
    assert called(line, tasks) == ["p/1", "p/2", "p/3", "d/1", "d/2", "d/3"]
    line.call(places=2, waiting=0, submitted={"d/1", "d/2", "d/3"}, now=60)
    assert not line.is_called("p/4")  # another one is being tried
    line.call(places=2, waiting=0, submitted={"d/1", "d/2", "d/3"}, now=80)
    assert line.is_called("p/4")


@pytest.mark.parametrize("resumes", ["a job of it is there", "one of its tasks joins again"])
def test_dag_that_comes_again_stands_in_line_as_before(resumes: str) -> None:
    line = line_of("p/1", "p/2", "p/3", "d/1")
    line.call(places=1, waiting=0, submitted={"p/0"}, now=0)
    line.call(places=1, waiting=1, submitted={"p/0"}, now=40)
    assert line.stands_aside("p/2")
    if resumes == "a job of it is there":
        line.call(places=1, waiting=1, submitted={"p/0", "p/1"}, now=50)
    else:
        line.join("p/1", since=0.0)
    assert not line.stands_aside("p/2")
    assert (line.ahead("p/2"), line.ahead("d/1")) == ((0, 2) if line.is_called("p/1") else (1, 3))


def test_log_says_what_a_task_really_waits_for() -> None:
    line = line_of("p/1", "p/2", "d/1")
    line.call(places=1, waiting=0, submitted=(), now=0)
    assert waits_for("d/1", line, 0).endswith("have not submitted yet: 1; tasks before this one: 1")
    line.call(places=1, waiting=1, submitted=(), now=40)
    assert waits_for("d/1", line, 1).endswith("); tasks before this one: 0")
    assert "no task of DAG 'p' that was called" in waits_for("p/2", line, 1)


def test_nobody_of_a_dag_that_does_not_come_is_tried_while_there_is_no_place() -> None:
    line = line_of("p/1", "p/2", "p/3")
    line.call(places=1, waiting=0, submitted=(), now=0)
    line.call(places=1, waiting=1, submitted=(), now=40)
    assert called(line, ["p/1", "p/2", "p/3"]) == ["p/1"]


def test_task_that_found_its_place_taken_is_the_first_again() -> None:
    line = line_of("a", "b")
    line.call(places=1, waiting=0, submitted=(), now=0)
    line.join("a", since=0.0)
    assert [line.ahead("a"), line.ahead("b")] == [0, 1]
    line.call(places=1, waiting=0, submitted=(), now=1)
    assert called(line, "ab") == ["a"]


def test_task_that_leaves_is_passed_over() -> None:
    line = line_of("a", "b")
    line.leave("a")
    line.call(places=1, waiting=0, submitted=(), now=0)
    assert line.is_called("b")


@settings(max_examples=30)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30))
def test_jobs_that_wait_never_exceed_the_limit_and_every_task_has_its_turn(
    places: int, ended: list[tuple[int, bool]]
) -> None:
    """Jobs wait until the cluster takes them; those that were called become jobs, or the line looks again
    before they did."""
    tasks = [f"t{i}" for i in range(10)]
    line, waiting, has_job = line_of(*tasks), list[str](), set[str]()
    for step, (taken, submits) in enumerate([*ended, *[(9, True)] * 25]):
        line.call(places, len(waiting), has_job, now=step / 100)
        coming = [task for task in called(line, tasks) if task not in has_job]
        assert len(waiting) + len(coming) <= places
        if submits:
            waiting += coming
            has_job |= set(coming)
        waiting = waiting[taken:]
    assert has_job == set(tasks)
