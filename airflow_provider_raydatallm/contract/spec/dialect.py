"""The two forms of a job, which only this file knows: as people write it, and nested, as `slice_job` has
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from airflow_provider_raydatallm.contract.base import Group, plain_text
from airflow_provider_raydatallm.contract.spec.engines import AUTO, KINDS, is_profile, with_kind
from airflow_provider_raydatallm.contract.spec.engines.own import Own
from airflow_provider_raydatallm.contract.spec.field import default_of, models_of
from airflow_provider_raydatallm.contract.spec.tasks import DEFAULT_TASK, TASK_ARGUMENTS, TASKS


def nested(arguments: Mapping[str, Any], groups: Mapping[str, type[Group]]) -> dict[str, Any]:
    """Returns what people write, the task's arguments in `task`, each group as a dict, and the kind of engine
    that "auto" stands for.

    :param groups: by their names.
    :raises ValueError: for a group in no form that it has, and for an engine that is none.
    """
    of_job = {name: value for name, value in arguments.items() if name not in TASK_ARGUMENTS}
    of_task = {name: value for name, value in arguments.items() if name in TASK_ARGUMENTS}
    for leaves in (of_job, of_task):
        for name in groups.keys() & leaves.keys():
            leaves[name] = groups[name].expand(name, leaves[name])
    task = plain_text(of_job.get("task", DEFAULT_TASK))
    of_job["task"] = {"kind": task, **_without_defaults(of_task, TASKS.get(str(task)), [*TASKS.values()])}
    engine = with_kind(of_job.get("engine", {}), str(of_job.get("model_source")))
    if is_profile(engine["kind"]):
        known = ", ".join(map(repr, (AUTO, *KINDS)))
        raise ValueError(
            f"engine.kind: unknown engine {engine['kind']!r}: use {known} or 'package.module:Class'"
        )
    of_job["engine"] = _without_defaults(engine, KINDS.get(engine["kind"], Own), [*KINDS.values()])
    return of_job


def written(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a nested job as people write it."""
    task = dict(job["task"])
    return {
        **{name: value for name, value in job.items() if name != "task"},
        "task": task.pop("kind"),
        **task,
    }


def _without_defaults(
    leaves: Mapping[str, Any], kind: type[Group] | None, kinds: Sequence[type[Group]]
) -> dict[str, Any]:
    """Returns the leaves without those that only other kinds have, where they say their default: forms, and
    specs that somebody wrote in full, have them."""
    if kind is None:
        return dict(leaves)
    kept = {}
    for name, value in leaves.items():
        if (group := _group_of(kind, name)) is not None and isinstance(value, Mapping):
            groups = [g for k in kinds if (g := _group_of(k, name)) is not None]
            kept[name] = _without_defaults(value, group, groups)
        elif name in kind.model_fields or not any(_is_default(k, name, value) for k in kinds):
            kept[name] = value
    return kept


def engines_with(leaves: Mapping[str, Any]) -> list[str]:
    """Returns the kinds of engines that have all of these leaves, those apart that say their default."""
    kinds = list(KINDS.values())
    return [
        name
        for name, kind in KINDS.items()
        if _without_defaults(leaves, kind, kinds).keys() <= kind.model_fields.keys()
    ]


def _group_of(kind: type[Group], name: str) -> type[Group] | None:
    field = kind.model_fields.get(name)
    groups = [] if field is None else models_of(field.annotation)
    return groups[0] if groups else None


def _is_default(kind: type[Group], name: str, value: Any) -> bool:
    """Whether a value is the default, also as JSON has it, or as a template renders it."""
    field = kind.model_fields.get(name)
    if field is None or value is None:
        return field is not None
    default = default_of(field)
    if isinstance(default, Group) and isinstance(value, Mapping):
        return all(_is_default(type(default), leaf, v) for leaf, v in value.items())
    try:
        return default is not ... and bool(_type_of_leaf(kind, name).validate_python(value) == default)
    except ValidationError:
        return False


@cache
def _type_of_leaf(kind: type[Group], name: str) -> TypeAdapter[Any]:
    field = kind.model_fields[name]
    annotated: Any = Annotated[(field.annotation, *field.metadata)]
    return TypeAdapter(annotated)
