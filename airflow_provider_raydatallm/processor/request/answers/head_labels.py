"""The labels of a model's classification head, as its files name them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.sizing.model_config import config_file

#: What transformers calls labels that nobody named.
_UNNAMED = re.compile(r"LABEL_\d+")
_GIVE_THEM = "Give them by choices, in the order of its head"


def head_labels(job: SliceJob) -> tuple[str, ...]:
    """Returns the labels in the order of the head's numbers.

    :raises SliceError: when neither the job nor the model's files on this machine name them, they contradict
        each other, or the head is of another kind.
    """
    choices, path = job.task.labels_of_answers, config_file(job.model_source)
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        if choices is None:
            raise _error(
                job, "its files are not on the head's machine, where its labels are read", _GIVE_THEM
            )
        return choices
    size, kind = head_size(config), config.get("problem_type")
    if kind not in (None, "single_label_classification"):
        raise _error(job, f"its head is for {kind}, and one label a text is published")
    if size < 2:
        raise _error(job, "its head gives one number a text", "Use task='score', or another model")
    named = config.get("id2label") or {}
    labels = tuple(str(named.get(str(i), f"LABEL_{i}")) for i in range(size))
    if choices is None:
        if any(map(_UNNAMED.fullmatch, labels)):
            raise _error(job, f"its config.json does not name its {size} labels", _GIVE_THEM)
        return labels
    if len(choices) != size:
        raise _error(job, f"its head has {size} labels, and choices has {len(choices)}")
    if all(map(_UNNAMED.fullmatch, labels)):
        return choices
    if set(choices) != set(labels):
        wrong = sorted(set(choices) - set(labels))
        raise _error(job, f"its labels are {', '.join(map(repr, labels))}, and choices has {wrong[0]!r}")
    return labels


def head_size(config: Mapping[str, Any]) -> int:
    """Returns how many numbers the head gives a text; transformers' default is 2."""
    return int(config.get("num_labels") or len(config.get("id2label") or ()) or 2)


def _error(job: SliceJob, why: str, advice: str = "") -> SliceError:
    return SliceError(
        f"model {job.model_source!r} cannot classify as asked: {why}", kind="input", advice=advice
    )
