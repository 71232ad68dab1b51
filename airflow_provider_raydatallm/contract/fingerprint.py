"""Which answers are the same, and which published slices: the two hashes of a slice, and the key of its
answer cache.

All are pure functions of a `SliceJob`, equal on the Airflow side and the Ray side: its arguments declare what
they affect (`spec.field`). Raise `ANSWER_VERSION` by hand, and only when the provider would answer the same
row differently.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raydatallm.contract.spec.engine_arguments import answer_affecting_kwargs
from airflow_provider_raydatallm.contract.spec.field import Affects, affected
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob

#: 2: a control token's text in a row is plain text to the model.
ANSWER_VERSION = 2
#: Of a value that is kept, beside the plan of a slice.
_BRIEF_CHARACTERS = 60
#: Of a hash in place of a longer one.
_HASH = re.compile("[0-9a-f]{16}")


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
            "arguments": _asked(job),
            **job.task.derived(job),
        }
    )


def asked(job: SliceJob) -> dict[str, str]:
    """The arguments that decide answers, by their paths, for people who compare two jobs: short values as
    they are, such as a number, others as their hashes. Those with their default are left out."""
    return dict(_brief(_asked(job)))


def changes_since(before: Mapping[str, Any], job: SliceJob) -> list[str]:
    """Says which arguments that decide answers changed, one text each, such as `model_source was a and is b`.

    :param before: `asked` of another job.
    """
    was, now = {name: str(value) for name, value in before.items()}, asked(job)
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [_change(name, was.get(name), now.get(name)) for name in names]


def _change(name: str, was: str | None, now: str | None) -> str:
    values = [value or "" for value in (was, now)]
    if any(_HASH.fullmatch(value) or len(value) > _BRIEF_CHARACTERS for value in values):
        return f"{name} changed"
    return f"{name} was {was or 'not set'} and is {now or 'not set'}"


def _asked(job: SliceJob) -> dict[str, Any]:
    return affected(job, Affects.ANSWERS, Affects.REQUEST, Affects.ROWS)


def _brief(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _brief(value, f"{above}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{above}{name}", text if len(text) <= _BRIEF_CHARACTERS else _hash_json({"": value})


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
