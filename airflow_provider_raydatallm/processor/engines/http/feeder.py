"""The feeder of a slice that an endpoint answers: there is one, and its process asks the endpoint itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engines.http import Http
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder, FeederSetup
from airflow_provider_raydatallm.processor.engines.feeding.row import RowDispatcher
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker
from airflow_provider_raydatallm.processor.engines.http.api import Api
from airflow_provider_raydatallm.processor.engines.http.chat import ChatApi
from airflow_provider_raydatallm.processor.engines.http.client import EndpointClient
from airflow_provider_raydatallm.processor.engines.http.dispatcher import HttpDispatcher
from airflow_provider_raydatallm.processor.engines.http.embeddings import EmbeddingsApi
from airflow_provider_raydatallm.processor.engines.http.limits import SpentTokens


class HttpFeeder(Feeder):
    def __init__(
        self, setup: FeederSetup, spent: SpentTokens | None = None, vector_size: int | None = None
    ) -> None:
        """
        :param spent: of the run's token budget.
        :param vector_size: of `ask_vector_size`.
        """
        self._spent, self._vector_size = spent, vector_size
        super().__init__(setup)

    def _new_dispatcher(self) -> RowDispatcher:
        job, asked = self._setup.job, self._setup.job.engine_as(Http)
        client = EndpointClient(job, open_api(job, self._vector_size), self._spent)
        return HttpDispatcher(client, asked.in_flight, asked.request_timeout, on_group=self._deliver_group)


def open_api(job: SliceJob, vector_size: int | None = None) -> Api:
    """Returns the API that the job's task asks."""
    return EmbeddingsApi(job, vector_size) if job.task.answers_vectors else ChatApi(job)


async def ask_vector_size(job: SliceJob) -> int:
    """Returns how many numbers the endpoint's vectors have: those of two texts, for one may be answered by
    another model in its place.

    :raises SliceError: when it answers none, or of several sizes.
    """
    sizes = []
    for text in ("Hello", "World"):
        api = EmbeddingsApi(job)
        client = EndpointClient(job, api)
        [request] = api([json.dumps({"messages": [{"content": text}]})])
        try:
            answer = await client.answer(request.params, 0)
        finally:
            await client.close()
        if client.failure is not None:
            raise client.failure
        assert answer is not None
        if answer.get("error"):
            raise SliceError(f"the endpoint answers no vector to {text!r}: {answer['error']}", kind="input")
        sizes.append(len(answer["numbers"]))
    if sizes[0] != sizes[1]:
        raise SliceError(
            f"the endpoint answers vectors of {sizes[0]} and of {sizes[1]} numbers",
            kind="transient",
            advice="Check that model_source names one model, at all servers behind engine.url",
        )
    return sizes[0]


class NoWorkers:
    """An endpoint has workers of its own, which nobody here sees."""

    def __init__(self, feeder: str) -> None:
        pass

    def ready(self) -> Sequence[Worker]:
        return ()
