"""The feeder of a slice that an endpoint answers: there is one, and its process asks the endpoint itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_raydatallm.processor.engines.feeding.feeder import Feeder
from airflow_provider_raydatallm.processor.engines.feeding.row import RowDispatcher
from airflow_provider_raydatallm.processor.engines.feeding.worker_pool import Worker
from airflow_provider_raydatallm.processor.engines.http.bodies import RequestBodies
from airflow_provider_raydatallm.processor.engines.http.client import EndpointClient
from airflow_provider_raydatallm.processor.engines.http.dispatcher import HttpDispatcher
from airflow_provider_raydatallm.processor.engines.vllm.request.tokenizer import TokenizedRequest


class HttpFeeder(Feeder):
    def _new_tokenizer(self) -> Callable[[Sequence[str]], list[TokenizedRequest]]:
        return RequestBodies(self._setup.job)

    def _new_dispatcher(self) -> RowDispatcher:
        job = self._setup.job
        return HttpDispatcher(EndpointClient(job), job.requests_in_flight, on_group=self._deliver_group)


class NoWorkers:
    """An endpoint has workers of its own, which nobody here sees."""

    def __init__(self, feeder: str) -> None:
        pass

    def ready(self) -> Sequence[Worker]:
        return ()
