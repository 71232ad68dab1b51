from __future__ import annotations

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayTaskError,
    TaskCancelledError,
)

from airflow_provider_raydatallm.processor.ray_runtime.actor_deaths import is_death

ENDED = [ActorDiedError(), ActorUnavailableError("it is restarting", None), OutOfMemoryError("killed")]


@pytest.mark.parametrize("error", ENDED)
def test_an_actor_that_ray_ended_or_lost_has_died(error: Exception) -> None:
    assert is_death(error)


@pytest.mark.parametrize("error", ENDED)
def test_an_actor_whose_call_raises_that_another_died_lives(error: Exception) -> None:
    raised = RayTaskError("FeederProcess.take", "Traceback", error).as_instanceof_cause()
    assert isinstance(raised, type(error))
    assert not is_death(raised)


@pytest.mark.parametrize("error", [ValueError(), TaskCancelledError()])
def test_other_errors_are_no_deaths(error: Exception) -> None:
    assert not is_death(error)
