from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.ray_runtime import marks
from airflow_provider_raydatallm.processor.ray_runtime.marks import Mark, cluster_lock, try_lock
from tests.support.key_value_store import replace_store


class Store:
    """A cluster's key-value store and its jobs, as this job sees them."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self.keys = keys
        self.job = "01"
        self.dead = {"01": False, "02": False}

    def jobs(self) -> list[dict[str, object]]:
        return [{"JobID": job, "IsDead": dead} for job, dead in self.dead.items()]

    def set_mark(self, name: str, job: str) -> None:
        self.job = job
        Mark.set(name)
        self.job = "01"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(replace_store(monkeypatch))
    monkeypatch.setattr("ray._private.state.jobs", store.jobs)
    context = SimpleNamespace(get_job_id=lambda: store.job)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    return store


def test_marks_are_listed_until_they_are_removed_or_their_job_is_gone(store: Store) -> None:
    mine = Mark.set("user b 2")
    store.set_mark("user a s3://x/ds=1", "02")
    store.set_mark("turn", "02")
    assert marks.marks("user ") == ["a s3://x/ds=1", "b 2"]
    mine.remove()
    assert marks.marks("user ") == ["a s3://x/ds=1"]
    del store.dead["02"]  # Ray does not know it: its marks do not count, and may count again
    assert marks.marks("user ") == []
    assert len(store.keys) == 2
    store.dead["02"] = True
    assert marks.marks("") == []
    assert store.keys == {}


def test_value_of_a_mark_goes_when_the_mark_or_its_job_does(store: Store) -> None:
    mine = Mark.set("user a 1", "sesame")
    store.set_mark("user a 2", "02")
    assert sorted(marks.values("user a ")) == ["", "sesame"]
    assert marks.values("user b ") == []
    mine.remove()
    assert marks.values("user a ") == [""]
    Mark.set("user a 1", "sesame")
    store.dead["01"] = True
    assert marks.values("user a ") == [""]
    assert b"sesame" not in store.keys.values()


def test_lock_is_one_job_s_at_a_time_until_it_is_released_or_its_job_dies(store: Store) -> None:
    store.set_mark("turned", "02")  # another name
    held = try_lock("turn")
    assert held is not None
    assert try_lock("turn") is None
    held.remove()
    store.set_mark("turn", "02")
    assert try_lock("turn") is None
    store.dead["02"] = True
    assert try_lock("turn") is not None


def test_lock_that_no_other_job_wants_is_taken_without_a_look_at_all_jobs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps thousands of ended ones."""
    monkeypatch.setattr(store, "dead", None)
    assert try_lock("turn") is not None
    assert marks.marks("") == ["turn"]


def test_of_two_that_lock_at_the_same_time_none_believes_to_be_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_mark = Mark.set

    def set_beside_another(name: str) -> Mark:
        mark = set_mark(name)
        store.set_mark(name, "02")
        return mark

    monkeypatch.setattr(Mark, "set", set_beside_another)
    monkeypatch.setattr(store, "set_mark", lambda name, job: store.keys.setdefault(
        f"ray-llm-mark {name}\0{job}\0nonce", b""
    ))  # fmt: skip
    assert try_lock("turn") is None
    assert len(store.keys) == 1  # the other's


def test_lock_waits_for_its_holder_and_is_released_after_a_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [None, store.keys.clear]

    def sleep(seconds: float) -> None:
        if action := waits.pop(0):
            action()

    monkeypatch.setattr(marks.time, "sleep", sleep)
    store.set_mark("x", "02")
    with cluster_lock("x", 60):
        assert (len(store.keys), waits) == (1, [])
    with pytest.raises(ValueError, match="broken"), cluster_lock("x", 60):
        raise ValueError("broken")
    assert store.keys == {}


def test_lock_that_others_never_release_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_LOOK_SECONDS", 0.01)
    store.set_mark("x", "02")
    with (
        pytest.raises(SliceError, match=r"hold the lock 'x' for more than 0\.05 s"),
        cluster_lock("x", 0.05),
    ):
        pass
