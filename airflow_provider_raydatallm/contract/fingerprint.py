"""Which answers are the same, and which published slices: the two hashes of a slice, and the key of its
answer cache.

All are pure functions of a `SliceJob`, equal on the Airflow side and the Ray side. Raise `ANSWER_VERSION` by
hand, and only when the provider would answer the same row differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.contract.spec.engine_arguments import answer_affecting_kwargs
from airflow_provider_raydatallm.contract.spec.request import LABEL_QUESTION
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

#: 2: a control token's text in a row is plain text to the model.
ANSWER_VERSION = 2
_REQUEST_FIELDS = {
    "system_prompt", "prompt", "choices", "output_schema", "regex", "grammar", "sampling_params",
    "chat_template_kwargs", "preprocess", "postprocess", "output_column",
}  # fmt: skip
#: Those that came later: only where they are set, so that slices that lack them keep their fingerprint.
_LATER_REQUEST_FIELDS = {"messages", "chat_template", "tools", "reasoning_parser", "logprobs"}


def fingerprint(job: SliceJob) -> str:
    """Returns 16 hex digits, a hash of everything that affects what is published: the answers, and the
    columns beside them."""
    published = {"columns": job.columns, "column_types": job.column_types, "max_rows": job.max_rows}
    return _hash_json({"answers": answers_fingerprint(job), **published})


def answers_fingerprint(job: SliceJob) -> str:
    """Returns 16 hex digits, a hash of everything that affects the answer to a row, except the columns that
    its request reads: the ids of units cover these, with their types."""
    custom_engine = ":" in job.engine
    inputs: dict[str, Any] = {
        "answer_version": ANSWER_VERSION,
        "model": job.model_source,
        "engine_kwargs": answer_affecting_kwargs(job.engine_kwargs),
        "request": job.model_dump(mode="json", include=_REQUEST_FIELDS),
        # All built-in engines on the cluster are vLLM and answer the same. An endpoint is known by its model:
        # its address may change (a gateway, a port, a region), and the model's name says what answers.
        "engine": job.engine if custom_engine or job.engine == "http" else "ray_data_llm",
        "code": job.code_hash if job.preprocess or job.postprocess or custom_engine else "",
        # Which rows the slice has, and how they are read: by another rule, they are other rows.
        "rule": job.row_rule,
    }
    if job.deduplicate:  # identical requests then share one answer even when sampling is random
        inputs["deduplicate"] = True
        # A cache shares random answers between slices too. A preprocess function may set sampling_params.
        if job.answer_cache is not None and (job.preprocess or not is_deterministic(job.sampling_params)):
            inputs["answer_cache"] = True
    inputs |= job.model_dump(mode="json", include=_LATER_REQUEST_FIELDS, exclude_defaults=True)
    if job.output_mode != "struct":
        inputs["output_mode"] = job.output_mode
    if job.repair:
        inputs["repair"] = job.repair
    if job.processor_kwargs:  # may hold a chat template
        inputs["processor_kwargs"] = job.processor_kwargs
    if job.task == "embed":
        inputs["embed"] = [job.embedding_dimensions, job.embedding_dtype, job.embedding_normalize]
    elif job.task != "generate":
        inputs["task"] = [job.task, job.query]
    if job.image_column is not None:
        inputs["images"] = [job.image_column, job.image_max_pixels]
    if job.audio_column is not None:
        inputs["audio"] = [job.audio_column, job.audio_language]
    if job.compares_labels:
        inputs["labels"] = _way_of_labels(job)
    if job.has_adapters:  # their content counts too, on the cluster (`version_policy.question`)
        inputs["adapter"] = job.adapters_as_written
    if job.label_confidence:
        inputs["label_confidence"] = True
    if job.on_too_long != "quarantine":
        inputs["on_too_long"] = job.on_too_long
    if job.engine_kwargs.get("max_model_len") == "auto":
        inputs["max_model_len_percentile"] = job.max_model_len_percentile
    return _hash_json(inputs)


def answer_cache_key(job: SliceJob, engine_kwargs: Mapping[str, Any], model_files: Any) -> str:
    """Returns 16 hex digits, a hash of everything that affects the answer to a request, except the request.

    :param engine_kwargs: the job's, with "auto" replaced by the chosen values.
    :param model_files: JSON that changes when a model or tokenizer is replaced in its folder.
    """
    return _hash_json(
        {
            "answer_version": ANSWER_VERSION,
            "model": job.model_source,
            "files": model_files,
            "engine_kwargs": answer_affecting_kwargs(engine_kwargs),
            "chat_template_kwargs": job.chat_template_kwargs,
            **job.model_dump(mode="json", include={"chat_template", "tools"}, exclude_defaults=True),
            "on_too_long": job.on_too_long,
            **({"embed": [job.embedding_dimensions, job.embedding_normalize]} if job.task == "embed" else {}),
            **({"task": job.task} if job.task in ("classify", "score") else {}),
            **({"transcribe": job.audio_language} if job.task == "transcribe" else {}),
            # The request itself names its images, or recordings, by their content.
            **({"image_max_pixels": job.image_max_pixels} if job.image_column is not None else {}),
            # The request itself names the choices.
            **({"labels": _way_of_labels(job)} if job.choices and job.task == "generate" else {}),
        }
    )


def _way_of_labels(job: SliceJob) -> Any:
    """How labels are found. Each other one's probability is told exactly only where it is published."""
    if not job.compares_labels:
        return "written"
    if job.multi_label:
        return ["asked", LABEL_QUESTION]
    return ["compared", job.label_confidence]


def is_deterministic(sampling_params: Mapping[str, Any]) -> bool:
    """Whether sampling repeats its answer: it is greedy or has a seed."""
    seed = sampling_params.get("seed")
    return sampling_params.get("temperature") == 0 or seed not in (None, -1)  # vLLM: -1 means no seed


def _hash_json(value: Mapping[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
