"""The arguments as people write them, from their declarations: `prompt`, and the leaves of groups, such as
`engine.kwargs`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic.fields import FieldInfo

from airflow_provider_raydatallm.contract.base import Group
from airflow_provider_raydatallm.contract.spec.engines import KINDS, WrittenEngine
from airflow_provider_raydatallm.contract.spec.engines.base import Engine
from airflow_provider_raydatallm.contract.spec.engines.own import Own
from airflow_provider_raydatallm.contract.spec.field import Declaration, declaration, is_collection, models_of
from airflow_provider_raydatallm.contract.spec.limits import TaskLimits
from airflow_provider_raydatallm.contract.spec.quality import TaskQuality
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS, RUN_FIELDS, SliceJob
from airflow_provider_raydatallm.contract.spec.tasks import TASKS


@dataclass(frozen=True)
class Leaf:
    """
    :param path: as people write it.
    :param kinds: of tasks, or engines, that have it, as conditions: `task='embed'`; empty: all have it.
    :param is_in_job: False for what concerns only how the task waits, and what it resolves itself.
    """

    path: str
    field: FieldInfo
    declared: Declaration
    kinds: tuple[str, ...] = ()
    is_in_job: bool = True

    @property
    def group(self) -> str | None:
        return self.path.rpartition(".")[0] or None

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


#: Groups of which people write more, or otherwise, than a job has.
_AS_WRITTEN: Mapping[str, type[Group]] = {
    "engine": WrittenEngine,
    "limits": TaskLimits,
    "quality": TaskQuality,
}


def _find() -> dict[str, Leaf]:
    leaves = {leaf.path: leaf for leaf in _of(SliceJob, "")}
    engines: dict[str, type[Group]] = {**KINDS, "package.module:Class": Own}
    tasks: dict[str, type[Group]] = {**TASKS}
    for group, kind, models in (("", "task", tasks), ("engine", "engine.kind", engines)):
        found: dict[str, Leaf] = {}
        conditions: dict[str, list[str]] = {}
        for name, model in models.items():
            for leaf in _of(model, group):
                known = found.setdefault(leaf.path, leaf)
                if not known.declared.doc:  # one of them tells
                    found[leaf.path] = leaf
                conditions.setdefault(leaf.path, []).append(f"{kind}={name!r}")
        for path, leaf in found.items():
            is_of_all = len(conditions[path]) == len(models)
            leaves[path] = leaf if is_of_all else replace(leaf, kinds=tuple(conditions[path]))
    del leaves["kind"]  # people write it as the argument `task`
    for group, model in _AS_WRITTEN.items():
        leaves |= {leaf.path: replace(leaf, is_in_job=leaf.path in leaves) for leaf in _of(model, group)}
    return leaves


def _of(model: type[Any], group: str) -> Iterator[Leaf]:
    for name, info in model.model_fields.items():
        path = f"{group}.{name}" if group else name
        if (declared := declaration(info)) is not None:
            if group and not declared.is_template:
                raise TypeError(f"{path}: a group is rendered leaf by leaf, so none of them is no template")
            yield Leaf(path, info, declared)
        elif len(models := models_of(info.annotation)) == 1:
            yield from _of(models[0], path)


#: All of them, by their paths.
LEAVES: Mapping[str, Leaf] = _find()
#: The paths of those that are lists, dicts or groups, and never text.
COLLECTIONS = frozenset(path for path, leaf in LEAVES.items() if is_collection(leaf.field.annotation))
#: The groups, and the names of their leaves.
LEAVES_OF: Mapping[str, tuple[str, ...]] = {
    group: tuple(leaf.name for leaf in LEAVES.values() if leaf.group == group) for group in GROUPS
}
#: The groups as the operator has them, whose docstrings are for users.
GROUP_MODELS: Mapping[str, type[Group]] = {
    **GROUPS,
    "engine": Engine,
    "limits": TaskLimits,
    "quality": TaskQuality,
}
#: The operator's arguments that describe its job: leaves that no run sets, the task, and the groups.
ARGUMENTS = (
    *(path for path, leaf in LEAVES.items() if leaf.group is None and path not in RUN_FIELDS),
    "task",
    *GROUPS,
)


def shows_value(path: str) -> bool:
    """Whether an error may quote the value of an argument: people write no secrets there."""
    leaf = LEAVES.get(path)
    return leaf is None or not (leaf.declared.may_hold_secret or leaf.declared.is_address)


def expand(group: str, value: Any) -> dict[str, Any]:
    """Returns the leaves that the value of a group sets, whichever form it has.

    :raises ValueError: when it is of none, or names a leaf that the group does not have.
    """
    leaves = GROUPS[group].expand(group, value, LEAVES_OF[group])
    for name in leaves:
        if f"{group}.{name}" not in LEAVES:
            raise ValueError(unknown_argument(f"{group}.{name}"))
    return leaves


def moved_argument(name: str) -> str | None:
    """Returns how an argument is written that is named like the leaf of a group, such as `accelerator` or
    `engine_accelerator`."""
    words = _words(name)
    found = [x for x in LEAVES.values() if x.group and (x.name == name or words == _words(x.path))]
    if not found:
        return None
    leaf = max(found, key=lambda leaf: name.endswith(leaf.name))
    return f"{leaf.group}={{{leaf.name!r}: ...}}"


def unknown_argument(path: str) -> str:
    """Returns what is wrong with an argument that does not exist, and the nearest that does."""
    group, _, name = path.rpartition(".")
    if group in GROUPS:
        near = difflib.get_close_matches(name, LEAVES_OF[group], n=1)
        text = f": did you mean {near[0]!r}?" if near else f": it has {', '.join(LEAVES_OF[group])}"
        others = [leaf.path for leaf in LEAVES.values() if leaf.name == name]
        text = f": write {others[0]}" if others else text
        return f"{group} has no {name!r}{text}" + (
            " vLLM's arguments stand in engine.kwargs" if group == "engine" else ""
        )
    if (moved := moved_argument(name)) is not None:
        return f"there is no {name}: write {moved}"
    nearest = nearest_argument(name)
    return f"there is no {path}" + (f": did you mean {nearest}?" if nearest is not None else "")


def nearest_argument(name: str) -> str | None:
    """Returns the argument whose words are in a name, the most of them; else the one most alike."""
    alike = difflib.get_close_matches(name, ARGUMENTS, n=1, cutoff=0.8)
    if alike:
        return alike[0]
    words = _words(name)

    def likeness(leaf: Leaf) -> tuple[int, bool, bool, bool]:
        last = leaf.name.rpartition("_")[2]
        shared = len(_words(leaf.path) & words)
        return shared, leaf.name in name, name.startswith(leaf.name), name.endswith(last)

    held = [leaf for leaf in LEAVES.values() if _words(leaf.name) <= words]
    if held:
        return max(held, key=likeness).path
    near = difflib.get_close_matches(name, [*ARGUMENTS, *(leaf.name for leaf in LEAVES.values())], 1, 0.7)
    if not near or near[0] in ARGUMENTS:
        return near[0] if near else None
    return next(path for path, leaf in LEAVES.items() if leaf.name == near[0])


def _words(path: str) -> set[str]:
    """The words of a path or a name, each in the singular."""
    return {word.removesuffix("s") for word in path.replace(".", "_").split("_")}


def other_kinds(path: str) -> tuple[str, ...]:
    """Returns the conditions under which an argument, or a group, exists, for one that exists elsewhere."""
    found = [leaf.kinds for leaf in LEAVES.values() if path in (leaf.path, leaf.group)]
    return tuple(dict.fromkeys(condition for kinds in found for condition in kinds))
