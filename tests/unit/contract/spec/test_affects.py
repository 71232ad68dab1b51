"""Each argument affects what it declares: seen by running pairs of jobs, and not by the fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider_raydatallm.contract.spec import dialect, leaves
from airflow_provider_raydatallm.contract.spec.field import Affects, default_of, leaf, leaves_of
from airflow_provider_raydatallm.contract.spec.leaves import LEAVES
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks import TASKS
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from tests.support import arguments
from tests.support.effects.cases import STRONGER, Case, find_cases
from tests.support.effects.declared import declared_as
from tests.support.effects.observation import Observation, observe
from tests.support.effects.proof import Finding, find, hashes, problems
from tests.support.effects.table import gaps
from tests.support.effects.world import World, write_world

Look = Callable[[SliceJob, Case], Observation]
Cases = Mapping[str, list[Case]]

PATHS = sorted(find_cases(World(Path("/world"))))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("effects")
        patch.setenv("VLLM_CACHE_ROOT", str(folder / "copies"))  # of adapters
        yield write_world(folder)


@pytest.fixture(scope="module")
def cases(world: World) -> Cases:
    return find_cases(world)


@pytest.fixture(scope="module")
def look(world: World) -> Look:
    """Observes each job once."""
    known: dict[Any, Observation] = {}

    def look_at(job: SliceJob, case: Case) -> Observation:
        key = (type(job), job.model_dump_json(), case.answer, case.mishap)
        if key not in known:
            known[key] = observe(job, case.answer, case.mishap, world.folder / "out")
        return known[key]

    return look_at


def findings(path: str, cases: Cases, look: Look) -> list[Finding]:
    return [find(path, case, look) for case in cases[path]]


def first_job(case: Case) -> SliceJob:
    return SliceJob.model_validate(arguments.written(**case.first))


@pytest.mark.parametrize("path", PATHS)
def test_argument_affects_what_it_declares(path: str, cases: Cases, look: Look) -> None:
    assert problems(path, findings(path, cases, look)) == []


def test_each_argument_is_changed_with_each_kind_of_task_and_engine_that_has_it(cases: Cases) -> None:
    assert gaps(LEAVES, cases) == []


@pytest.mark.parametrize("path", STRONGER)
def test_argument_that_declares_more_than_it_has_to_still_does(path: str, cases: Cases, look: Look) -> None:
    assert problems(path, findings(path, cases, look), stronger=[])


def test_argument_whose_effect_depends_on_the_job_is_changed_in_jobs_of_each_effect(
    cases: Cases, look: Look
) -> None:
    depending = [path for path, one in LEAVES.items() if callable(one.declared.affects)]
    effects = {path: {one.said for one in findings(path, cases, look)} for path in depending}
    assert [path for path, said in effects.items() if len(said) < 2] == []


def test_argument_that_has_its_default_counts_nowhere(cases: Cases) -> None:
    """So that a new one changes no published slice."""
    counted = []
    for path in PATHS:
        for case in cases[path]:
            job = first_job(case)
            values = {p: (value, field) for p, value, field, _ in leaves_of(job)}
            value, field = values.get(path, (None, None))
            if field is None or field.is_required() or value != default_of(field):
                continue
            known = hashes(job)
            with declared_as(path, Affects.NOTHING):
                counted += [path] if hashes(job) != known else []
    assert counted == []


def test_what_is_only_for_the_waiting_task_is_in_no_job(cases: Cases) -> None:
    waiting = [one for one in LEAVES.values() if not one.is_in_job]
    assert waiting
    for one in waiting:
        assert one.declared.affects is Affects.NOTHING, one.path
        given = {**cases["prompt"][0].first, one.path.replace(".", "__"): "1h"}
        with pytest.raises(ValidationError, match=one.name):
            SliceJob.model_validate(arguments.written(**given))


@pytest.mark.parametrize(
    ("path", "affects", "effect"),
    [
        ("chat_template", Affects.NOTHING, Affects.ANSWERS),
        ("chat_template", Affects.REQUEST, Affects.ANSWERS),
        ("images.max_pixels", Affects.REQUEST, Affects.ANSWERS),
        ("embedding.normalize", Affects.REQUEST, Affects.ANSWERS),
        ("engine.kwargs", Affects.NOTHING, Affects.ANSWERS),
        ("engine.processor", Affects.NOTHING, Affects.ANSWERS),
        ("task", Affects.NOTHING, Affects.ANSWERS),
        ("output_column", Affects.NOTHING, Affects.REQUEST),
        ("output_column", Affects.PUBLISHED, Affects.REQUEST),
        ("quality.repair", Affects.NOTHING, Affects.REQUEST),
        ("engine.deduplicate", Affects.NOTHING, Affects.REQUEST),
        ("source.encoding", Affects.NOTHING, Affects.ROWS),
        ("source.csv", Affects.REQUEST, Affects.ROWS),
        ("columns", Affects.NOTHING, Affects.PUBLISHED),
        ("source.max_rows", Affects.NOTHING, Affects.PUBLISHED),
        ("slice_key", Affects.NOTHING, Affects.INPUT),
    ],
)
def test_declaration_that_says_too_little_is_found(
    path: str, affects: Affects, effect: Affects, cases: Cases, look: Look
) -> None:
    with declared_as(path if path != "task" else "kind", affects):
        wrong = problems(path, findings(path, cases, look))
    assert any(
        text.startswith(f"declares {affects.name}, and has the effect {effect.name}") for text in wrong
    )


@pytest.mark.parametrize(
    ("path", "affects"),
    [
        ("engine.workers", Affects.REQUEST),
        ("columns", Affects.REQUEST),
        ("prompt", Affects.ANSWERS),
        ("publish.keep_versions", Affects.PUBLISHED),
        ("output_path", Affects.INPUT),
    ],
)
def test_declaration_that_says_too_much_is_found(
    path: str, affects: Affects, cases: Cases, look: Look
) -> None:
    with declared_as(path, affects):
        wrong = problems(path, findings(path, cases, look))
    assert any(text.startswith(f"declares {affects.name} of ") for text in wrong)


class _Suffixed(Generate):
    """The task with a new argument that changes prompts, and whose author forgot to say so."""

    suffix: str | None = leaf(None, affects=Affects.NOTHING)

    @property
    def request_arguments(self) -> dict[str, Any]:
        return {**super().request_arguments, "prompt": f"{self.prompt}{self.suffix or ''}"}


@pytest.fixture
def _suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "TASK_ARGUMENTS", dialect.TASK_ARGUMENTS | {"suffix"})
    monkeypatch.setattr(leaves, "TASKS", {**TASKS, "generate": _Suffixed})


@pytest.mark.usefixtures("_suffix")
def test_new_argument_needs_a_case(cases: Cases) -> None:
    assert gaps(leaves._find(), cases) == ["suffix has no case"]


@pytest.mark.usefixtures("_suffix")
@pytest.mark.parametrize("affects", [Affects.NOTHING, Affects.PUBLISHED, Affects.REQUEST])
def test_new_argument_that_changes_prompts_has_to_say_so(affects: Affects, cases: Cases, look: Look) -> None:
    class Declared(_Suffixed):
        suffix: str | None = leaf(None, affects=affects)

    class Job(SliceJob):
        task: Declared

    finding = find("suffix", Case(cases["prompt"][0].first, "!"), look, Job.model_validate)
    wrong = problems("suffix", [finding])
    if affects is Affects.REQUEST:
        assert wrong == []
    else:
        [text] = wrong
        assert text.startswith(f"declares {affects.name}, and has the effect REQUEST: requests of row")


@pytest.mark.usefixtures("_suffix")
def test_new_argument_that_declares_nothing_at_all_stops_every_job(cases: Cases) -> None:
    class Undeclared(Generate):
        suffix: str | None = None

    class Job(SliceJob):
        task: Undeclared

    with pytest.raises(TypeError, match="suffix does not say what it affects"):
        Job.model_validate(arguments.written(**cases["prompt"][0].first))
