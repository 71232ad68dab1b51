"""A small slice in one process: it reads, feeds the engine and writes the fragments.

A process costs one to two seconds of CPU to start, more than a few thousand rows do, and Ray Data needs
several. Ray starts this one again when it dies, and the driver gives it the rows that are still missing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_raydatallm.contract.result.failure import Place
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.base import OpenFeeder
from airflow_provider_raydatallm.processor.inference.death_error import ROW_ADVICE, death_error
from airflow_provider_raydatallm.processor.inference.fragment_writers import OwnWriter, WriterActor
from airflow_provider_raydatallm.processor.inference.pipeline import RequestStage, WriterSink
from airflow_provider_raydatallm.processor.ray_runtime.actor_deaths import is_death
from airflow_provider_raydatallm.processor.ray_runtime.bounded_calls import wait_for_refs
from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log
from airflow_provider_raydatallm.processor.ray_runtime.slow_imports import keep_pandas_from_pyarrow
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.request.requests import RequestReader
from airflow_provider_raydatallm.processor.root_error import starting
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from airflow_provider_raydatallm.processor.store.spans import Spans

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: Deaths of the process with no finished row between them, after which the run ends.
_MOST_DEATHS = 4


class SliceProcess(WriterActor):
    def run(
        self,
        missing: Sequence[tuple[int, Spans]],
        is_retry: bool,
        job: SliceJob,
        reader: RequestReader,
        open_feeder: OpenFeeder,
        parser: AnswerParser,
        block_rows: int,
    ) -> None:
        """Answers the missing rows. What it has not written yet goes with the next flush.

        :param is_retry: whether the process died over them before.
        """
        start_log(job.slice_key)
        if not job.runs_user_code:
            keep_pandas_from_pyarrow()
        writer = OwnWriter(self)
        with starting():
            feeder = open_feeder(WriterSink(parser, writer))
        reader.check_ahead((index for index, _ in missing), is_retry=is_retry)
        stage = RequestStage(reader, writer)
        for block in cut_blocks((table for item in missing for table in stage.read(*item)), block_rows):
            feeder(block)
        feeder.drain()


def cut_blocks(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yields tables of so many rows; the last has the rest."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(t.num_rows for t in waiting) >= rows:
            whole = pa.concat_tables(waiting)
            full = whole.num_rows - whole.num_rows % rows
            yield from (whole.slice(start, rows) for start in range(0, full, rows))
            waiting = [whole.slice(full)]
    if any(t.num_rows for t in waiting):
        yield pa.concat_tables(waiting)


def run_in_slice_process(
    process: ActorHandle[Any],
    missing: MissingRows,
    still_missing: Callable[[], MissingRows],
    place_of_first: Callable[[MissingRows], Place],
    *arguments: Any,
) -> None:
    """Answers the missing rows there.

    :param still_missing: reads which rows are, after the process died.
    :param arguments: the others of `SliceProcess.run`.
    :raises SliceError: when it dies again and again.
    """
    import ray
    from ray.exceptions import ActorUnavailableError

    run, deaths = process.run.options(max_task_retries=0), 0
    while len(missing):
        answered = run.remote(list(missing), deaths > 0, *arguments)
        wait_for_refs([answered], num_returns=1, timeout_s=None)
        try:
            ray.get(answered)
            return
        except Exception as e:
            if not is_death(e):
                raise
            if isinstance(e, ActorUnavailableError):  # it may go on with these rows
                ray.kill(process, no_restart=False)
            # Calls that are not retried fail at once while it starts again.
            wait_for_refs([process.__ray_ready__.remote()], num_returns=1, timeout_s=None)
            before, missing = missing.rows, still_missing()
            deaths = deaths + 1 if missing.rows == before else 1
            if deaths >= _MOST_DEATHS:
                raise death_error(
                    f"the slice's process died {deaths} times without a finished row "
                    f"(missing: {missing.rows:,})",
                    e,
                    kind="transient",
                    place=place_of_first(missing),
                    advice=ROW_ADVICE,
                ) from e
