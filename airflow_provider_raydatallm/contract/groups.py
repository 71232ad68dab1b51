"""The arguments that stand in groups, as people write them, and the spec's fields, which are flat.

`engine={"accelerator": "L4"}` is the field `accelerator_type`; texts call it `engine.accelerator`. The
operator's arguments and the specs that people write for the command line have this form. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

#: The groups, their leaves, and the flat name of each.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "engine": {
        "kind": "engine",
        "kwargs": "engine_kwargs",
        "accelerator": "accelerator_type",
        "workers": "concurrency",
        "scope": "engine_scope",
        "idle_timeout": "engine_idle_timeout",
        "max_shared": "max_shared_engines",
        "deduplicate": "deduplicate",
        "cache": "answer_cache",
        "cache_max_bytes": "answer_cache_max_bytes",
        "cache_max_days": "answer_cache_max_days",
        "max_model_len_percentile": "max_model_len_percentile",
        "blocks": "blocks",
        "batch_size": "batch_size",
        "max_concurrent_batches": "max_concurrent_batches",
        "processor": "processor_kwargs",
        "url": "endpoint_url",
        "allow_http": "allow_plain_http",
        "in_flight": "requests_in_flight",
        "requests_per_minute": "requests_per_minute",
        "tokens_per_minute": "tokens_per_minute",
        "token_budget": "token_budget",
        "request_timeout": "request_timeout",
    },
    "source": {
        "format": "input_format",
        "column": "slice_column",
        "slice_format": "slice_format",
        "column_types": "column_types",
        "csv": "csv_options",
        "encoding": "encoding",
        "on_invalid_text": "on_invalid_text",
        "max_rows": "max_rows",
        "trial": "trial",
        "on_empty": "on_empty",
    },
    "rerun": {
        "on_config_change": "on_config_change",
        "on_input_change": "on_input_change",
        "on_running": "on_running",
        "force": "force_rerun",
        "retry_quarantined": "retry_quarantined",
        "verify": "verify",
    },
    "quality": {
        "max_quarantine": "max_quarantine_fraction",
        "max_invalid": "max_invalid_fraction",
        "repair": "repair",
        "max_attempts": "max_row_attempts",
        "on_too_long": "on_too_long",
    },
    "adapter": {
        "path": "adapter_path",
        "paths": "adapter_paths",
        "column": "adapter_column",
        "on_null": "adapter_on_null",
        "base_model": "adapter_base_model",
    },
    "embedding": {
        "dimensions": "embedding_dimensions",
        "dtype": "embedding_dtype",
        "normalize": "embedding_normalize",
    },
    "images": {
        "column": "image_column",
        "max_pixels": "image_max_pixels",
        "max_bytes": "image_max_bytes",
        "sources": "image_sources",
        "timeout": "image_timeout",
    },
    "labels": {
        "exact": "exact_labels",
        "confidence": "label_confidence",
        "multi": "multi_label",
    },
    "audio": {
        "column": "audio_column",
        "language": "audio_language",
        "max_seconds": "audio_max_seconds",
        "max_bytes": "audio_max_bytes",
        "sources": "audio_sources",
        "timeout": "audio_timeout",
    },
    "publish": {
        "max_file_bytes": "max_file_bytes",
        "file_per_input": "file_per_input",
        "keep_versions": "keep_versions",
        "on_schema_change": "on_schema_change",
        "metadata_path": "metadata_path",
        "quarantine_path": "quarantine_path",
    },
    "limits": {
        "queue": "queue_timeout",
        "stall": "stall_timeout",
        "orphan": "orphan_timeout",
        "reconnect": "reconnect_timeout",
        "finish_by": "finish_by",
    },
}
#: Short forms of `rerun`.
_RERUN = {
    "keep": {},
    "recompute": {"on_config_change": "recompute", "on_input_change": "recompute"},
    "extend": {"on_input_change": "extend"},
}
#: Engines that are no profiles.
KINDS = ("auto", "vllm", "ray_data_llm", "http")
_LABELS = {field: f"{group}.{leaf}" for group, leaves in GROUPS.items() for leaf, field in leaves.items()}


def label(field: str) -> str:
    """Returns what people call a field of the spec, such as `limits.queue`."""
    return _LABELS.get(field, field)


def flatten(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with the groups' leaves under their flat names.

    An engine's profile is resolved before (`with_profile`).

    :raises ValueError: naming the group and the leaf that it does not have, with the nearest one it has.
    """
    flat = {name: value for name, value in arguments.items() if name not in GROUPS}
    for group in (name for name in GROUPS if name in arguments):
        for leaf, value in _leaves(group, arguments[group]).items():
            field = GROUPS[group].get(leaf)
            if field is None:
                raise ValueError(f"{group} has no {leaf!r}{_nearest(group, str(leaf))}")
            if field in flat:
                raise ValueError(f"{field} and {group}.{leaf} are the same: give one of them")
            flat[field] = value
    return flat


def with_profile(engine: Any, profiles: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns the engine group with what the profile says that it names; its own leaves go first, those of
    `kwargs` and `processor` one by one.

    :param engine: the group, the name of a kind, or the name of a profile.
    :param profiles: the connection's.
    :raises ValueError: when there is no such profile; lists those that there are.
    """
    own = dict(engine) if isinstance(engine, Mapping) else {"profile": engine}
    if (name := own.pop("profile", None)) is None:
        return own
    if not isinstance(name, str):
        raise ValueError(f"engine.profile is {name!r}: give the name of a profile")
    if name not in profiles:
        known = f"it has {', '.join(map(repr, sorted(profiles)))}" if profiles else "it has none"
        raise ValueError(
            f"engine: {name!r} is neither {', '.join(map(repr, KINDS))} nor an engine profile of the "
            f"connection (its extra 'engines'): {known}"
        )
    merged = {**profiles[name], **own}
    for leaf in ("kwargs", "processor"):
        both = [leaves[leaf] for leaves in (profiles[name], own) if leaves.get(leaf) is not None]
        if wrong := [values for values in both if not isinstance(values, Mapping)]:
            raise ValueError(f"engine.{leaf} is {wrong[0]!r}: give a dict")
        merged[leaf] = {argument: value for values in both for argument, value in values.items()}
    return merged


def names_profile(engine: Any) -> bool:
    return is_profile(engine) or (isinstance(engine, Mapping) and "profile" in engine)


def is_profile(engine: Any) -> bool:
    """Whether an engine that is given by name is a profile."""
    return isinstance(engine, str) and engine not in KINDS and ":" not in engine


def moved_argument(name: str) -> str | None:
    """Returns how an argument is written that has the flat name of a leaf."""
    group, _, leaf = _LABELS.get(name, "").partition(".")
    return f"{group}={{{leaf!r}: ...}}" if leaf else None


def _leaves(group: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    if group == "engine" and isinstance(value, str):
        return {"kind": value}
    if group == "adapter" and isinstance(value, str):
        return {"path": value}
    if group == "rerun" and isinstance(value, str) and value in _RERUN:
        return _RERUN[value]
    if group in ("images", "audio") and isinstance(value, str):
        return {"column": value}
    leaves = ", ".join(GROUPS[group])
    short = {
        "rerun": f", or one of {', '.join(map(repr, _RERUN))}",
        "adapter": ", or the folder of one",
        "images": ", or the name of a column",
        "audio": ", or the name of a column",
    }.get(group, "")
    raise ValueError(f"{group} is {value!r}: give a dict with any of {leaves}{short}")


def _nearest(group: str, leaf: str) -> str:
    flat = _LABELS.get(leaf)
    if flat is not None:
        return f": write {flat}"
    near = difflib.get_close_matches(leaf, GROUPS[group], n=1)
    text = f": did you mean {near[0]!r}?" if near else f": it has {', '.join(GROUPS[group])}"
    return text + (" vLLM's arguments stand in engine.kwargs" if group == "engine" else "")
