"""From a row to a request: `{column}` fields, chat messages, sampling parameters.

Braces that hold exactly a column's name are replaced. Braces that look like a name but are no column are an
error. All other braces (JSON examples) stay as they are: this is not `str.format`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.processor.request.row_function import RowFunction

_BRACES = re.compile(r"\{([^{}]*)\}")
_LOOKS_LIKE_A_NAME = re.compile(r"[\w .\-]*\w[\w .\-]*")

Row = Mapping[str, Any]


class Template:
    """A text with `{column}` fields, checked against the columns there are.

    :raises SliceError: when braces that look like a name are no column; says which columns there are.
    """

    def __init__(self, text: str, columns: Sequence[str], *, argument: str = "prompt") -> None:
        known = set(columns)
        self._parts: list[tuple[str, str | None]] = []  # (literal text, then the column that follows it)
        end = 0
        for match in _BRACES.finditer(text):
            name = match.group(1)
            if name not in known:
                if _LOOKS_LIKE_A_NAME.fullmatch(name):
                    raise SliceError(
                        f"{argument} names the column {name!r}, which the input does not have. "
                        f"Columns: {', '.join(map(repr, columns))}",
                        kind="input",
                    )
                continue
            self._parts.append((text[end : match.start()], name))
            end = match.end()
        self._parts.append((text[end:], None))

    @property
    def columns(self) -> list[str]:
        """Columns the template needs, in order of first use."""
        return list(dict.fromkeys(name for _, name in self._parts if name is not None))

    def render(self, row: Row) -> str:
        return "".join(text if name is None else text + as_text(row[name]) for text, name in self._parts)


def as_text(value: Any) -> str:
    """A value as it reads in a prompt: nothing for null, JSON for lists, structs and maps, ISO for dates and
    times."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=as_text)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat is not None else str(value)


class RequestBuilder:
    """Makes a row's request: `{"messages": [...], "sampling_params": {...}}`.

    `sampling_params` values that are exactly `"{column}"` take that row's value, with its type.
    `structured_outputs` is set from whichever of choices, output_schema, regex, grammar the job has.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        prompt: str | None,
        system_prompt: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        structured_outputs: Mapping[str, Any] | None = None,
        preprocess: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._all_columns = list(columns)
        self._prompt = Template(prompt, columns) if prompt is not None else None
        self._system = Template(system_prompt, columns, argument="system_prompt") if system_prompt else None
        self._preprocess = preprocess
        if isinstance(preprocess, RowFunction):
            preprocess.check(columns)
        self._fixed: dict[str, Any] = {}
        self._per_row: dict[str, str] = {}
        for name, value in (sampling_params or {}).items():
            match = _BRACES.fullmatch(value) if isinstance(value, str) else None
            if match and (match.group(1) in columns or _LOOKS_LIKE_A_NAME.fullmatch(match.group(1))):
                self._per_row[name] = Template(value, columns, argument=f"sampling_params[{name!r}]").columns[
                    0
                ]
            else:
                self._fixed[name] = value
        if structured_outputs:
            self._fixed["structured_outputs"] = dict(structured_outputs)

    @property
    def columns(self) -> list[str]:
        """Input columns that requests need: only these enter the pipeline."""
        named = self._preprocess.columns if isinstance(self._preprocess, RowFunction) else None
        if self._preprocess is not None and named is None:
            return self._all_columns
        needed = [
            *(named or []),
            *(self._system.columns if self._system else []),
            *(self._prompt.columns if self._prompt else []),
        ]
        return list(dict.fromkeys([*needed, *self._per_row.values()]))

    def build(self, row: Row) -> dict[str, Any]:
        sampling = dict(self._fixed)
        for name, column in self._per_row.items():
            if row[column] is not None:
                sampling[name] = row[column]
        if self._preprocess is None:
            assert self._prompt is not None
            return {"messages": self._messages(row, self._prompt.render(row)), "sampling_params": sampling}
        made = self._preprocess(dict(row))
        if isinstance(made, str):
            return {"messages": self._messages(row, made), "sampling_params": sampling}
        if isinstance(made, Mapping) and ("prompt" in made) != ("messages" in made):
            if unknown := set(made) - {"prompt", "messages", "sampling_params"}:
                raise SliceError(
                    f"preprocess returned unknown keys {sorted(unknown)}: use prompt or messages, "
                    "sampling_params",
                    kind="input",
                )
            messages = made["messages"] if "messages" in made else self._messages(row, str(made["prompt"]))
            return {
                "messages": messages,
                "sampling_params": {**sampling, **(made.get("sampling_params") or {})},
            }
        raise SliceError(
            "preprocess must return a prompt (text) or a dict with either 'prompt' or 'messages', got "
            f"{made!r:.200}",
            kind="input",
        )

    def _messages(self, row: Row, prompt: str) -> list[dict[str, Any]]:
        user = {"role": "user", "content": prompt}
        return [{"role": "system", "content": self._system.render(row)}, user] if self._system else [user]


def structured_outputs(
    *,
    choices: Sequence[str] | None,
    output_schema: Mapping[str, Any] | None,
    regex: str | None,
    grammar: str | None,
) -> dict[str, Any] | None:
    """vLLM's `structured_outputs` for the shape an answer must have; None for free text."""
    if choices is not None:
        return {"choice": list(choices)}
    if output_schema is not None:
        return {"json": json.dumps(output_schema)}
    if regex is not None:
        return {"regex": regex}
    if grammar is not None:
        return {"grammar": grammar}
    return None
