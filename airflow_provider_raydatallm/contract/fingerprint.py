"""Which answers are the same, and which published slices: the two hashes of a slice, and the key of its
answer cache.

All are pure functions of a `SliceJob`, equal on the Airflow side and the Ray side: its arguments declare what
they affect (`spec.field`). Raise `ANSWER_VERSION` by hand, and only when the provider would answer the same
row differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.contract.spec.engine_arguments import answer_affecting_kwargs
from airflow_provider_raydatallm.contract.spec.field import Affects, affected
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

#: 2: a control token's text in a row is plain text to the model.
ANSWER_VERSION = 2


def fingerprint(job: SliceJob) -> str:
    """Returns 16 hex digits, a hash of everything that affects what is published: the answers, and the
    columns beside them."""
    return _hash_json({"answers": answers_fingerprint(job), **affected(job, Affects.PUBLISHED)})


def answers_fingerprint(job: SliceJob) -> str:
    """Returns 16 hex digits, a hash of everything that affects the answer to a row, except the columns that
    its request reads: the ids of units cover these, with their types.

    What lies in an adapter's folder counts, too, on the cluster (`version_policy.question`).
    """
    return _hash_json(
        {
            "answer_version": ANSWER_VERSION,
            "arguments": asked(job),
            **job.task.derived(job),
        }
    )


def asked(job: SliceJob) -> dict[str, Any]:
    """The arguments that decide answers, by their paths; those with their default are left out."""
    return affected(job, Affects.ANSWERS, Affects.REQUEST, Affects.ROWS)


def answer_cache_key(job: SliceJob, engine_kwargs: Mapping[str, Any], model_files: Any) -> str:
    """Returns 16 hex digits, a hash of everything that affects the answer to a request, except the request.
    It names its images, or recordings, by their content, and its choices.

    :param engine_kwargs: the job's, with "auto" replaced by the chosen values.
    :param model_files: JSON that changes when a model or tokenizer is replaced in its folder.
    """
    return _hash_json(
        {
            "answer_version": ANSWER_VERSION,
            "arguments": {n: v for n, v in affected(job, Affects.ANSWERS).items() if n != "engine.kwargs"},
            "engine_kwargs": answer_affecting_kwargs(engine_kwargs),
            "files": model_files,
            **job.task.derived(job),
        }
    )


def _hash_json(value: Mapping[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
