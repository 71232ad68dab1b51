"""Jobs that died without a report: `data/failures/jobs.json` holds what Ray said about them."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.exceptions import (
    BY_KIND,
    RayEngineDiedError,
    RayJobStoppedError,
    RayLLMInputError,
    RayLLMJobError,
    RayModelNotFoundError,
    RayOutOfMemoryError,
)
from airflow_provider_raydatallm.task.job.failure import explain_failure
from tests.support.paths import FAILURES

JOBS = json.loads((FAILURES / "jobs.json").read_text())


@pytest.mark.parametrize(("name", "error", "root"), [
    ("no_module", RayLLMInputError, "No module named airflow_provider_raydatallm.nope"),
    ("import_error", RayLLMInputError, "ModuleNotFoundError: No module named 'polars_of_mine'"),
    ("no_command", RayLLMJobError, "/bin/sh: 1: pithon: not found"),
    ("killed", RayEngineDiedError, "the driver was killed by SIGKILL (exit code 137)"),
    ("segv", RayEngineDiedError, "the driver was ended by SIGSEGV (exit code 139)"),
    ("silent", RayLLMJobError, "the driver ended with exit code 3 and wrote no error"),
    (
        "pip", RayLLMInputError,
        "runtime_env setup failed: No matching distribution found for no-such-package-of-mine==9.9.9",
    ),
    (
        "uv", RayLLMInputError,
        "runtime_env setup failed: No solution found when resolving dependencies cause: Because no-such-",
    ),
    (
        "package_gone", RayLLMJobError,
        "runtime_env setup failed: OSError: Failed to download runtime_env file package gcs://_ray_pkg_",
    ),
    (
        "node_died", RayEngineDiedError,
        "Job supervisor actor died: The actor died because its node has died. Node Id: 1ed5b655249ee81b",
    ),
])  # fmt: skip
def test_root_error_comes_first(name: str, error: type[AirflowException], root: str) -> None:
    job = JOBS[name]
    failure = explain_failure(job["status"], job["message"], (job["log"] or "").splitlines())
    assert BY_KIND[failure.kind] is error
    assert failure.message.startswith(root)
    # Ray's message holds the end of the log: it is enough where the log is gone with its node.
    assert explain_failure(job["status"], job["message"], []) == failure


def test_lost_node_is_reported_with_its_reason() -> None:
    job = JOBS["node_died"]
    failure = explain_failure(job["status"], job["message"], [])
    message = failure.message
    assert "health check failed due to missing too many heartbeats" in message
    assert failure.advice[0].startswith("The cluster lost a node")
    assert "class_name" not in message


def test_killed_driver_is_diagnosed_as_out_of_memory_whatever_its_log_says() -> None:
    message = (
        "Job entrypoint command failed with exit code 137, last available logs (truncated to 20,000 chars):\n"
    )
    failure = explain_failure(
        "FAILED", message, ["Traceback (most recent call last):", "ValueError: caught", "Killed"]
    )
    assert BY_KIND[failure.kind] is RayEngineDiedError
    assert failure.cause == "the driver was killed by SIGKILL (exit code 137)"
    assert "memory runs out" in failure.advice[0]


def test_engine_core_that_was_killed_is_said_to_be_killed() -> None:
    line = "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}"
    failure = explain_failure("FAILED", "", [line])
    assert (failure.kind, failure.advice[0].startswith("Its node kills")) == ("engine", True)


@pytest.mark.parametrize(("line", "error"), [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", RayOutOfMemoryError),
    ("OSError: You are trying to access a gated repo.", RayModelNotFoundError),
    ("ray.exceptions.ActorDiedError: The actor died unexpectedly", RayEngineDiedError),
    ("ValueError: that is all", RayLLMJobError),
])  # fmt: skip
def test_last_exception_of_a_driver_or_its_workers_decides_the_kind(
    line: str, error: type[AirflowException]
) -> None:
    message = (
        "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
    )
    worker = f"\x1b[36m(MapWorker(MapBatches(A)) pid=1, ip=10.0.0.1)\x1b[0m {line}"
    progress = encode_line("progress", "n", {"step": "start"})
    assert explain_failure("FAILED", message, [progress, line, progress]) == explain_failure(
        "FAILED", message, [worker]
    )
    failure = explain_failure("FAILED", message, [line])
    assert (BY_KIND[failure.kind], failure.cause) == (error, line)


def test_stopped_and_unknown_jobs_are_reported_as_such() -> None:
    stopped = explain_failure("STOPPED", "Job was intentionally stopped.", [])
    assert BY_KIND[stopped.kind] is RayJobStoppedError
    assert "stopped by somebody" in stopped.sentence
    assert explain_failure(None, "", []) == Failure(
        "transient", "the driver wrote no error", cause="the driver wrote no error"
    )
    assert BY_KIND[explain_failure("SUCCEEDED", "Job finished successfully.", []).kind] is RayLLMJobError
