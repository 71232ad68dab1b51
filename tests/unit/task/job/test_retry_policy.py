"""The retry policy in the docs, as Airflow evaluates it."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

import pytest
from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_provider_raydatallm import exceptions
from airflow_provider_raydatallm.contract.result.failure import FINAL, Failure, Kind
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "operator.md"


@pytest.fixture(scope="module")
def policy() -> ExceptionRetryPolicy:
    """The policy of the example's task, after serialization."""
    [example] = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "RetryRule" in block
    ]
    names: dict[str, Any] = {}
    with DAG("d", schedule=None):
        exec(example, names)
    task = names["infer"]
    assert (task.has_retry_policy, task.retries) == (True, 5)
    return ExceptionRetryPolicy.deserialize(json.loads(json.dumps(task.retry_policy.serialize())))


@pytest.mark.parametrize(("kind", "action", "delay"), [
    ("engine", RetryAction.RETRY, dt.timedelta(seconds=30)),
    ("queue", RetryAction.RETRY, dt.timedelta(hours=1)), ("gpu_memory", RetryAction.FAIL, None),
    ("stopped", RetryAction.DEFAULT, None), ("transient", RetryAction.DEFAULT, None),
])  # fmt: skip
def test_policy_of_the_docs_distinguishes_failures(
    policy: ExceptionRetryPolicy, kind: Kind, action: RetryAction, delay: dt.timedelta | None
) -> None:
    decision = policy.evaluate(exceptions.error_of(Failure(kind, "x")), try_number=1, max_tries=5)
    assert (decision.action, decision.retry_delay) == (action, delay)


def test_every_kind_of_failure_is_retryable_or_not() -> None:
    assert set(exceptions.BY_KIND) == set(Kind.__args__)  # type: ignore[attr-defined]
    retryable = {k for k, e in exceptions.BY_KIND.items() if issubclass(e, exceptions.RayLLMJobError)}
    for kind, error in exceptions.BY_KIND.items():
        assert issubclass(error, AirflowFailException) == (kind in FINAL)
    assert retryable | {"timeout"} == set(Kind.__args__) - FINAL  # type: ignore[attr-defined]
    assert exceptions.BY_KIND["timeout"] is AirflowTaskTimeout


@pytest.mark.parametrize("kind", sorted(exceptions.BY_KIND))
def test_the_exception_of_a_record_carries_it(kind: Kind) -> None:
    failure = Failure(kind, "s", advice=("a",), cause="c")
    error = exceptions.error_of(failure)
    assert type(error) is exceptions.BY_KIND[kind]
    assert exceptions.failure_of(error) is failure
    assert str(error) == failure.message


def test_docs_name_every_exception() -> None:
    public = {n for n, e in vars(exceptions).items() if n.startswith("Ray") and isinstance(e, type)}
    assert public == set(re.findall(r"^\| `(Ray\w+)` \|", PAGE.read_text(), re.M))
