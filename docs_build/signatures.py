"""What type checkers and editors need as text, from the declarations of arguments: the TypedDicts of
`operators/groups.py`, and the arguments in the operator's docstring.

`make docs` writes them; a test says when they are stale.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator

from airflow_provider_raydatallm.contract.durations import to_optional_seconds, to_seconds
from airflow_provider_raydatallm.contract.spec.engines import KINDS
from airflow_provider_raydatallm.contract.spec.leaves import GROUP_MODELS, LEAVES, Leaf
from airflow_provider_raydatallm.operators import groups, ray_llm_batch

_WIDTH = 110
#: Of the fields that are durations.
_DURATIONS = (to_seconds, to_optional_seconds)
_HEAD = '''"""The operator's arguments that stand in groups: plain dicts, whose leaves may be templates.

An upstream task's output may be a whole group, or a leaf. A group in a task replaces the one of
`default_args`. Written by `make docs`, from the declarations in `contract.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath, XComArg
    from airflow.sdk.definitions._internal.templater import LiteralValue

    Later: TypeAlias = str | XComArg
    #: With `airflow.sdk.literal`, which keeps braces as they are.
    Text: TypeAlias = Later | LiteralValue
    Path: TypeAlias = Later | ObjectStoragePath
    Duration: TypeAlias = timedelta | float | Later
'''


def texts() -> dict[Path, str]:
    """Returns the files, and what they should hold."""
    operator = Path(str(ray_llm_batch.__file__))
    return {
        Path(str(groups.__file__)): f"{_HEAD}{''.join(map(_typed_dict, GROUP_MODELS))}",
        operator: _with_documented_arguments(operator.read_text(encoding="utf-8")),
    }


def _typed_dict(group: str) -> str:
    leaves = [leaf for leaf in LEAVES.values() if leaf.group == group]
    described = inspect.getdoc(GROUP_MODELS[group]) or ""
    described = textwrap.indent(described, "    ").strip()
    docs = "\n".join(_param(leaf.name, doc_of(leaf), 4) for leaf in leaves)
    fields = "\n".join(f"    {leaf.name}: {annotation_of(leaf)}" for leaf in leaves)
    head = f'class {group.title()}(TypedDict, total=False):\n    """{described}'
    return f'\n\n{head}\n\n{docs}\n    """\n\n{fields}\n'


def doc_of(leaf: Leaf) -> str:
    """What it means, and of which kinds of engines it is."""
    if leaf.group != "engine" or not leaf.kinds:
        return leaf.declared.doc
    kinds = {kind.partition("=")[2].strip("'") for kind in leaf.kinds}
    others = [kind for kind in KINDS if kind not in kinds]
    shown, word = (others, "Not of") if kinds - KINDS.keys() else (sorted(kinds), "Of")
    return f"{leaf.declared.doc} ({word} kind {' or '.join(f'`{kind}`' for kind in shown)}.)"


def _with_documented_arguments(source: str) -> str:
    """The operator's file, its docstring saying of each argument that a job has what the declaration says."""
    for path, leaf in LEAVES.items():
        if leaf.group is None:
            described = rf"^    :param {path}: .*?(?=^    :param |^    \"\"\")"
            if found := re.search(described, source, re.M | re.S):
                text = f"{_param(leaf.name, leaf.declared.doc, 4)}\n"
                source = source[: found.start()] + text + source[found.end() :]
    return source


def _param(name: str, doc: str, indent: int) -> str:
    margin = " " * indent
    # Examples of values stay in one line.
    words = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), f":param {name}: {doc}")
    lines = textwrap.wrap(
        words, _WIDTH - indent, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(margin + line for line in lines).replace("\0", " ")


def annotation_of(leaf: Leaf) -> str:
    """The type of a leaf in a DAG file, where it may also be rendered later."""
    field = leaf.field
    later = "Path" if leaf.declared.is_address else "Later"
    kinds = [name for part in _parts(field.annotation, field.metadata) for name in _names(part, later)]
    has_mappings = any(name.startswith(("Mapping", "list")) for name in kinds)
    none = ["None"] if type(None) in get_args(field.annotation) else []
    rendered = [] if kinds == ["Duration"] else ["XComArg" if has_mappings else later]
    return " | ".join(dict.fromkeys([*kinds, *rendered, *none]))


def _parts(annotation: Any, metadata: Sequence[Any] = ()) -> list[Any]:
    """The types of a union, other than None; `to_seconds` for a duration."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if any(isinstance(m, BeforeValidator) and m.func in _DURATIONS for m in metadata):
        return [to_seconds]
    if origin is Annotated:
        return _parts(parts[0], parts[1:])
    if origin in (Union, types.UnionType):
        return [kind for part in parts for kind in _parts(part) if kind is not type(None)]
    return [annotation]


def _names(kind: Any, later: str) -> Iterator[str]:
    """What people may write for a type, other than text."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is to_seconds:
        yield "Duration"
    elif origin is Literal:
        yield f"Literal[{', '.join(map(_quoted, parts))}]"
    elif origin is tuple:
        yield _names_of_list(parts[0]) if parts[-1] is ... else "tuple[int, int] | list[int]"
    elif kind is dict or origin is dict:
        is_of_text = bool(parts) and parts[1] is str
        yield f"Mapping[str, {('Path' if later == 'Path' else 'str') if is_of_text else 'Any'}]"
    elif issubclass(kind, BaseModel):
        is_of_text = all(field.annotation is str for field in kind.model_fields.values())
        yield f"Mapping[str, {'str' if is_of_text else 'Any'}]"
    elif kind is not str:
        yield str(kind.__name__)


def _names_of_list(item: Any) -> str:
    is_model = isinstance(item, type) and issubclass(item, BaseModel)
    return "list[dict[str, Any]]" if is_model else "list[str]"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def write() -> None:
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
