"""Uploads a slice's code and spec to the cluster and starts the processor as a Ray job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_raydatallm.contract import addresses
from airflow_provider_raydatallm.contract.job.phase import PHASE, WAITING
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.submit import packages

if TYPE_CHECKING:
    from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
    from airflow_provider_raydatallm.hooks.ray import RayHook

#: Parts of a runtime environment by which a job may run another Python than its cluster.
_PYTHON_SETTINGS = frozenset({"conda", "container", "image_uri", "py_executable"})


@dataclass(frozen=True)
class JobSubmission:
    """A slice's job and everything that is sent with it.

    :param lend_credentials: returns environment variables, when the job is to be sent: a task that finds its
        job needs none.
    :param metadata: what Ray shows of the job: its sender and its slice.
    :param finish_by: epoch seconds at which the slice should be finished.
    """

    job: SliceJob
    packages: Sequence[packages.Package]
    runtime_env: Mapping[str, Any] | None = field(repr=False)
    lend_credentials: Callable[[], Mapping[str, str]] = field(repr=False)
    metadata: Mapping[str, str]
    finish_by: float | None = None

    def submit(
        self,
        hook: RayHook,
        command: Literal["run", "status", "decide"],
        submission_id: str,
        nonce: str,
        arguments: Sequence[str] = (),
    ) -> None:
        """Starts `processor COMMAND` on the cluster, unless a job with this id exists.

        :param nonce: marks the job's own lines in its log.
        :raises RayConnectionError, RayClusterUnfitError, RayUnreachableError: before anything was started.
        :raises RayLLMInputError: when the cluster's Python cannot run the task's function.
        """
        credentials = self.lend_credentials()
        hook.call(jobs_api.get_version())
        if any(p.python for p in self.packages) and not _PYTHON_SETTINGS & set(self.runtime_env or ()):
            packages.check_python(self.packages, hook.call(jobs_api.get_python_version()))
        spec_name, spec = packages.spec_package(self.job)
        all_packages = [packages.processor_package(), spec, *self.packages]
        uris = [hook.call(jobs_api.upload_package(p.name, p.content)) for p in all_packages]
        words = (command, f"package:{spec_name}", "--nonce", nonce, *arguments)
        hook.call(
            jobs_api.submit(
                submission_id=submission_id,
                entrypoint=f"python -m airflow_provider_raydatallm.processor.job {shlex.join(words)}",
                runtime_env=packages.merge_runtime_env(
                    self.runtime_env, py_modules=uris, env_vars={**addresses.environment(), **credentials}
                ),
                metadata={**self.metadata, **({PHASE: WAITING} if command == "run" else {})},
                driver_resources=hook.settings.driver_resources,
            )
        )


def make_submission_id(metadata: Mapping[str, str], unique: str) -> str:
    """A readable job id. Ray refuses slashes and spaces.

    :param unique: such as the task instance's UUID: an id must never be used twice.
    """
    words = (re.sub(r"[^A-Za-z0-9_.-]+", "_", metadata[n])[:40] for n in ("dag_id", "task_id", "slice_key"))
    return f"{'-'.join(words)}-{unique}"
