"""How the rows of a plan become requests and answers, by what a job asks."""

from __future__ import annotations

from typing import Any

from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.adapters.slice_adapters import SliceAdapters
from airflow_provider_raydatallm.processor.engines.load_engine import load_engine
from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.load_function import load_function
from airflow_provider_raydatallm.processor.media.cells import check_media_column
from airflow_provider_raydatallm.processor.request.adapter_choice import AdapterChoice
from airflow_provider_raydatallm.processor.request.answers.output_schema import structured_outputs
from airflow_provider_raydatallm.processor.request.answers.parser import AnswerParser
from airflow_provider_raydatallm.processor.request.conversation import check_conversation_column
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder
from airflow_provider_raydatallm.processor.root_error import starting


def request_builder(job: SliceJob, plan: Plan, adapters: SliceAdapters) -> RequestBuilder:
    """:param plan: tells the input's columns.
    :raises SliceError: when the request names columns that the input does not have, or that hold something
        else.
    """
    task = job.task
    asked = task.request_arguments
    if job.preprocess is None and not task.needs_prompt:
        asked["prompt"] = asked["prompt"] or ""
    if (messages := asked.get("messages")) is not None:
        check_conversation_column(messages, plan.schema)
    if task.media is not None:
        check_media_column(task.media, plan.source_schema)
    images = task.images.sources if isinstance(task, Generate) else ()
    digests = {name: adapter.digest for name, adapter in adapters.by_name.items()}
    return RequestBuilder(
        plan.columns,
        **asked,
        # By which the engine knows that identical requests may run once.
        sampling_params={
            **({"temperature": 0} if job.draws_nothing else {}),
            **task.sampling,
            **_logprobs(job),
        },
        structured_outputs=structured_outputs(job),
        preprocess=load_function(job.preprocess),
        media=task.media,
        image_sources=MediaSources(images) if task.media is None and images else None,
        adapter=AdapterChoice.of_job(job, digests, plan.columns),
    )


def plan_inference(
    job: SliceJob, plan: Plan, shape: AnswerParser, builder: RequestBuilder, adapters: SliceAdapters
) -> InferencePlan:
    engine_class = load_engine(job)
    with starting():
        engine = engine_class(job, plan.rows)
    if adapters.by_name:
        engine.use_adapters(list(adapters.by_name.values()))
    return InferencePlan(job, plan, builder, engine, shape)


def _logprobs(job: SliceJob) -> dict[str, Any]:
    """Parameters of the job's requests: of the sampled tokens only, in vLLM's words and OpenAI's."""
    if "logprobs" not in job.task.given(job):
        return {}
    return {"logprobs": job.engine.capabilities.first_logprob}
