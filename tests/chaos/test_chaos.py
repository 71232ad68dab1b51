"""A short share of `python -m tests.chaos`: every step once, on one storage or the other, and the special
cases that differ most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import Findings, Promise, compare
from tests.chaos.failpoints import FailPoint, When
from tests.chaos.life import Outcome
from tests.chaos.on_ray import Engine, OnRay, RayTrial
from tests.chaos.processes import Processes
from tests.chaos.storage import S3
from tests.chaos.trials import (
    DIALECTS,
    RECONCILE,
    RULES,
    STAGED,
    STEPS,
    STORAGES,
    WAKINGS,
    Storage,
    Trial,
    staged_trials,
    stop_at,
)
from tests.support.marks import long

SEED = 20260131


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.close()


@pytest.fixture
def processes(s3: S3, tmp_path: Path) -> Processes:
    return Processes(tmp_path, s3, SEED)


def assert_clean(outcome: Outcome) -> None:
    assert (outcome.lost, outcome.duplicated, outcome.altered) == (0, 0, 0), outcome
    assert not outcome.faults, outcome


#: On S3 this is the step that differs most from a disk's; another is killed in its midst below.
_ON_S3 = {"commit"}


def every_step() -> Iterator[Any]:
    """On both storages, of which the disk will do for every day."""
    for step in STEPS:
        for storage in STORAGES:
            is_enough = storage == "disk" or step in _ON_S3
            yield pytest.param(step, storage, marks=() if is_enough else pytest.mark.long)


@pytest.mark.parametrize(("step", "storage"), list(every_step()))
def test_kill_at_any_step_loses_no_row(processes: Processes, step: str, storage: Storage) -> None:
    index = list(STEPS).index(step) + STORAGES.index(storage)
    scenarios = STEPS[step]
    when = ("before", "after")[index % 2]
    points = [FailPoint(step, when)]
    if step == "removal of old lease":  # met by the run that takes over
        points.insert(0, FailPoint("fragment", "after"))
    scenario = scenarios[index % len(scenarios)]
    outcome = processes.run(Trial(f"{index}", "step", storage, scenario, tuple(points)))
    assert outcome.kills >= 1
    assert_clean(outcome)


@pytest.mark.parametrize(
    ("step", "storage"),
    [
        pytest.param(
            step, storage, marks=() if (step == "placing a file") == (storage == "s3") else pytest.mark.long
        )
        for step in ("fragment", "staged part", "commit", "placing a file")
        for storage in STORAGES
    ],
)
def test_kill_within_a_write_leaves_nothing_half_written(
    processes: Processes, step: str, storage: Storage
) -> None:
    assert_clean(processes.run(Trial("in", "step", storage, "new", (FailPoint(step, "in", torn=True),))))


@pytest.mark.parametrize(
    ("scenario", "step"),
    [
        ("vectors", "fragment"),
        ("vectors recompute", "commit"),
        ("scores", "staged part"),
        ("labels", "fragment"),
    ],
)
def test_kill_loses_no_number(processes: Processes, scenario: str, step: str) -> None:
    outcome = processes.run(Trial("numbers", "step", "disk", scenario, (FailPoint(step, "after", 1),)))
    assert outcome.kills >= 1
    assert_clean(outcome)


@pytest.mark.parametrize("storage", ["disk", long("s3")])
def test_two_at_once_ask_the_engine_once(processes: Processes, storage: Storage) -> None:
    assert_clean(processes.run(Trial("two", "two at once", storage, "recompute")))


@pytest.mark.parametrize(
    ("step", "when", "scenario"),
    [
        pytest.param("fragment", "before", "new", marks=pytest.mark.long),
        ("staged part", "in", "recompute"),
        ("removal of _SUCCESS", "before", "recompute"),
        pytest.param("placing a file", "before", "parts", marks=pytest.mark.long),
        ("commit", "before", "recompute parts"),
        ("placing _SUCCESS", "before", "parts"),
    ],
)
def test_holder_that_wakes_up_late_harms_nothing(
    processes: Processes, step: str, when: When, scenario: str
) -> None:
    assert_clean(
        processes.run(Trial("zombie", "zombie", "disk", scenario, (stop_at(step, when),), other=True))
    )


@pytest.mark.parametrize(
    "waking", [pytest.param(w, marks=() if i % 3 == 0 else pytest.mark.long) for i, w in enumerate(WAKINGS)]
)
def test_two_holders_that_wake_up_late_harm_nothing(processes: Processes, waking: str) -> None:
    points = (
        stop_at("staged part", "before"),
        stop_at("commit", "before"),
        stop_at("placing a file", "before"),
    )
    trial = Trial("two", "two zombies", "disk", "recompute", points, other=True, variant=waking)
    assert_clean(processes.run(trial))


@pytest.mark.parametrize(
    "step", [pytest.param(s, marks=() if i % 6 == 0 else pytest.mark.long) for i, s in enumerate(RECONCILE)]
)
def test_pause_between_steps_of_showing_a_version_harms_nothing(processes: Processes, step: str) -> None:
    points = (stop_at(step, "before"),)
    assert_clean(processes.run(Trial("pause", "zombie", "disk", "recompute parts", points, other=True)))


@pytest.mark.parametrize("variant", ["beside a stopped run", "beside a live run"])
def test_gc_takes_no_row(processes: Processes, variant: str) -> None:
    points = (stop_at("commit", "before"),) if "stopped" in variant else ()
    assert_clean(processes.run(Trial("gc", "gc", "disk", "recompute", points, variant=variant)))


@pytest.mark.parametrize("variant", STAGED)
def test_staged_version_is_published_once_or_not_at_all(processes: Processes, variant: str) -> None:
    trial = next(t for t in staged_trials(SEED, 60) if t.variant == variant and t.storage == "disk")
    assert_clean(processes.run(trial))


@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=() if i == 0 else pytest.mark.long) for i, r in enumerate(RULES)]
)
def test_other_rule_gives_no_row_the_answer_of_another(processes: Processes, rule: str) -> None:
    points = (FailPoint("fragment", "after", 2),)
    assert_clean(processes.run(Trial("killed", "rule", "disk", "recompute", points, variant=rule)))
    assert_clean(processes.run(Trial("finished", "rule", "disk", "extend", variant=rule)))


@pytest.mark.parametrize("is_killed", [False, True])
def test_configurations_x_y_x_pay_what_is_not_answered(processes: Processes, is_killed: bool) -> None:
    points = (FailPoint("fragment", "after", 3),) if is_killed else ()
    assert_clean(processes.run(Trial("back", "X, Y, X", "disk", "recompute", points)))


@pytest.mark.parametrize("storage", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_late_removal_of_success_is_healed(processes: Processes, storage: Storage) -> None:
    points = (stop_at("removal of _SUCCESS", "before"),)
    assert_clean(processes.run(Trial("late", "late removal", storage, "recompute", points)))


@pytest.mark.parametrize("variant", ["A, B, A", "same size and time"])
def test_swapped_input_gives_no_row_the_answer_of_another(processes: Processes, variant: str) -> None:
    assert_clean(processes.run(Trial("swap", "swapped input", "disk", "new", variant=variant)))


def test_foreign_readers_see_one_version(processes: Processes) -> None:
    points = (FailPoint("placing a file", "after"),)
    assert_clean(processes.run(Trial("readers", "readers", "disk", "recompute parts", points)))


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
def test_store_of_another_dialect_loses_no_row(processes: Processes, dialect: str) -> None:
    points = (FailPoint("placing a file", "in"),)
    assert_clean(processes.run(Trial("dialect", "dialect", "s3", "recompute parts", points, variant=dialect)))


@pytest.mark.parametrize("kind", ["storage dies", "storage misbehaves"])
def test_storage_that_fails_costs_time_and_no_row(processes: Processes, kind: str) -> None:
    assert_clean(processes.run(Trial("storage", kind, "s3", "parts")))


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    runner = OnRay(tmp_path_factory.mktemp("ray"), SEED)
    yield runner
    assert runner.close() == []


@pytest.mark.long
@pytest.mark.parametrize("target", ["driver", "fragment writer", "engine actor"])
def test_kill_on_a_cluster_loses_no_row(on_ray: OnRay, target: str) -> None:
    [outcome] = on_ray.run(RayTrial((target.replace(" ", "-"),), "stub", ((target, "answering"),)))
    assert outcome.kills == 1
    assert_clean(outcome)


@pytest.mark.long
@pytest.mark.parametrize(("target", "engine"), [("fragment writer", "stub"), ("slice process", "workers")])
def test_pause_on_a_cluster_loses_no_row(on_ray: OnRay, target: str, engine: Engine) -> None:
    trial = RayTrial((f"paused-{engine}",), engine, ((target, "answering"),), "pause")
    [outcome] = on_ray.run(trial)
    assert outcome.kills == 1
    assert_clean(outcome)


def test_audit_counts_what_is_lost_published_twice_and_altered() -> None:
    rows = [{"id": i, "answer": f"a{i}"} for i in range(5)]
    found = Findings()
    compare([rows[0], rows[0], rows[2], {"id": 3, "answer": "a4"}, rows[4]], Promise(rows), found)
    assert (found.lost, found.duplicated, found.altered) == (1, 1, 1)
    swapped = Findings()
    compare([rows[1], rows[0], *rows[2:]], Promise(rows), swapped)
    assert (swapped.altered, swapped.clean) == (2, False)


@pytest.mark.parametrize("broken", ["answers of the wrong place", "short is good enough"])
def test_audit_notices_a_product_that_is_broken(s3: S3, tmp_path: Path, broken: str) -> None:
    points = (FailPoint("fragment", "after", 2),)
    outcome = Processes(tmp_path, s3, SEED, broken).run(Trial("broken", "step", "disk", "new", points))
    assert not outcome.clean


def test_audit_notices_a_holder_that_nothing_fences(s3: S3, tmp_path: Path) -> None:
    zombie = Trial("broken", "zombie", "disk", "new", (stop_at("placing a file", "before"),), other=True)
    outcome = Processes(tmp_path, s3, SEED, "nothing is fenced").run(zombie)
    assert any("DuckDB sees other rows" in fault for fault in outcome.faults)
