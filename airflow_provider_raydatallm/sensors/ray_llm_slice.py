"""`RayLLMSliceSensor`: waits until a slice is published, by whichever task, DAG or program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.sdk import PokeReturnValue
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from airflow_provider_raydatallm.contract.addresses import check_absolute, check_fields
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.slice_paths import slice_folder
from airflow_provider_raydatallm.contract.spec.source import SLICE_FORMAT, check_slice_format
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.arguments import check_bools, is_rendered_later, to_url
from airflow_provider_raydatallm.task.mapped_task import CheckedWhenMapped
from airflow_provider_raydatallm.task.run_slice import slice_of_run
from airflow_provider_raydatallm.task.text_templates import TextTemplates
from airflow_provider_raydatallm.task.wanted_slice import WantedSlice

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raydatallm.operators.groups import Path


class RayLLMSliceSensor(TextTemplates, CheckedWhenMapped, BaseSensorOperator):
    """Waits until a slice is published and its folder shows it, whole. Its result is the report's JSON.

    It reads the table's metadata with the identity of the machine that it runs on. Storage that is away is
    looked at again, until `timeout`.

    :param output_path: of the task that publishes the slice. Template.
    :param slice_key: which slice; by default that of this task's run, as for `RayLLMBatchOperator`. Template.
    :param slice_format: of the run's date, as the publishing task's `source.slice_format`.
    :param metadata_path: as the publishing task's `publish.metadata_path`, where it was set. Template.
    :param min_rows: published rows, at least.
    :param max_quarantine: share of the slice's rows in quarantine, at most, from 0 to 1.
    :param deferrable: wait in the triggerer, without a worker. Default: `[operators] default_deferrable`.
    :param kwargs: of `BaseSensorOperator`, such as `poke_interval`, `timeout` and `soft_fail`.
    """

    template_fields: Sequence[str] = ("output_path", "slice_key", "metadata_path")

    def __init__(
        self,
        *,
        output_path: Path,
        slice_key: str | None = None,
        slice_format: str = SLICE_FORMAT,
        metadata_path: Path | None = None,
        min_rows: int = 0,
        max_quarantine: float = 1.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(max_quarantine, int | float) or not 0 <= max_quarantine <= 1:
            raise RayLLMInputError(f"max_quarantine is a share from 0 to 1, got {max_quarantine!r}")
        if not isinstance(min_rows, int) or min_rows < 0:
            raise RayLLMInputError(f"min_rows is a number of rows, got {min_rows!r}")
        self.output_path, self.metadata_path = to_url(output_path), to_url(metadata_path)
        self.slice_key, self.slice_format = slice_key, slice_format
        self.min_rows, self.max_quarantine = min_rows, max_quarantine
        self.deferrable = deferrable
        check_bools(self, "deferrable")
        self._check_arguments()

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            with self._timeout_says_for_what(context):
                return super().execute(context)
        try:
            wanted = self._wanted(context)
            report = self._look(wanted)
        except RayLLMInputError as e:  # as Airflow does it after a poke, and after the waiting
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipping, as soft_fail or never_fail is set: {e}") from e
            raise
        if report is None:
            from airflow_provider_raydatallm.triggers.slice_published import SlicePublishedTrigger

            self.defer(
                trigger=SlicePublishedTrigger(asdict(wanted), self.poke_interval),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        return report

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._timeout_says_for_what(context):
            return super().resume_execution(next_method, next_kwargs, context)

    @contextmanager
    def _timeout_says_for_what(self, context: Context) -> Iterator[None]:
        """Airflow's own error names neither the slice nor the table, one of which may be wrong."""
        try:
            yield
        except (AirflowSensorTimeout, AirflowSkipException) as e:
            skipped_for_another_reason = isinstance(e, AirflowSkipException) and not (
                e.__cause__ is None or isinstance(e.__cause__, AirflowSensorTimeout)
            )
            if skipped_for_another_reason:
                raise
            text = f"{e} Waited for {self._wanted(context)}; the log says what was there"
            raise type(e)(text) from e

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues `execute` after the waiting in the triggerer.

        :param event: of `SlicePublishedTrigger`.
        """
        if "failure" in event:
            raise RayLLMInputError(Failure.parse(event["failure"]))
        return event

    def poke(self, context: Context) -> PokeReturnValue:
        report = self._look(self._wanted(context))
        return PokeReturnValue(is_done=report is not None, xcom_value=report)

    def _look(self, wanted: WantedSlice) -> dict[str, Any] | None:
        try:
            return wanted.look(self.log)
        except SliceError as e:
            raise RayLLMInputError(e.failure) from e

    def _check_arguments(self) -> None:
        """:raises RayLLMInputError: for a path at which nothing would ever be, and a format of no date."""
        if self.output_path is None:
            raise RayLLMInputError(f"{self.task_id}: output_path is missing")
        try:
            check_slice_format(self.slice_format)
            for name in ("output_path", "metadata_path"):
                path = getattr(self, name)
                if path is not None and not is_rendered_later(path):
                    check_absolute(name, path)
                    check_fields(name, path)
        except ValueError as e:
            raise RayLLMInputError(f"{self.task_id}: {e}") from None

    def _wanted(self, context: Context) -> WantedSlice:
        self._check_arguments()
        key = slice_of_run(context, self.slice_key, self.slice_format).key
        try:
            path = slice_folder(self.output_path, key)
        except ValueError as e:
            raise RayLLMInputError(str(e)) from e
        return WantedSlice(path, self.metadata_path, self.min_rows, self.max_quarantine)
