"""The pages of `docs/reference/`, from the code: `make docs` writes them; a test says when they are stale.

Arguments come from the operator's signature and docstring and from the groups' TypedDicts, their limits and
defaults from the spec, figures from the report, settings from the provider's info, commands from their
parsers.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from airflow_provider_raydatallm.cli.main import make_parser
from airflow_provider_raydatallm.contract.result.report import Report
from airflow_provider_raydatallm.contract.spec.field import default_of
from airflow_provider_raydatallm.contract.spec.leaves import GROUP_MODELS, LEAVES, Leaf
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS, RUN_FIELDS
from airflow_provider_raydatallm.get_provider_info import get_provider_info
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor
from docs_build.signatures import annotation_of, doc_of
from docs_build.values import (
    cell,
    json_default,
    json_type,
    limits,
    paragraph,
    python_default,
    table,
    written_type,
)

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
_ARGUMENTS = """
# Arguments

Of `RayLLMBatchOperator`, as its code declares them. [RayLLMBatchOperator](../operator.md) says how they work
together. **T** marks those that are templates, groups leaf by leaf.
"""
_SENSOR = """
## RayLLMSliceSensor

[Waiting for a slice](../lineage-and-assets.md#waiting-for-a-slice) says what it is for. It also takes the
arguments of every sensor.
"""
_SPEC = """
# Spec

What a job gets, and what `airflow-ray-llm` takes as a file: JSON, with the leaves of a group in an object
(`engine.workers` is `{"engine": {"workers": 4}}`). Fields mean what the operator's [arguments](arguments.md)
of the same names do; unknown ones are refused. [Without Airflow](../operator.md#without-airflow) has an
example.
"""
_OF_THE_JOB = """
## The slice and the code

What the operator finds out when it runs.
"""
_REPORT = """
# Report

What a run says of its slice: the content of a version's report file. The operator's
[XCom](../operator.md#xcom) has Airflow's timings and the job's links, too, and neither `per_worker` nor
`history`. Null means: not measured.
"""
_CONFIGURATION = """
# Settings

## Airflow's configuration

Section `[ray_llm]`, or variables such as `AIRFLOW__RAY_LLM__MAX_WAITING_JOBS`.
"""
_CONNECTION = """
## The connection

Of type `ray`: the fields of its extra, beside host and password. [The Ray connection](../connection.md)
explains all of them.
"""
_COMMANDS = """
# Commands

Of `airflow-ray-llm`, and of `airflow ray-llm` on a machine with Airflow's configuration.
[Command line](../command-line.md) says what each is for.
"""


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The pages' names and texts."""
    parts = {
        "arguments.md": _arguments(),
        "spec.md": _spec(),
        "report.md": _report(),
        "settings.md": _settings(),
        "commands.md": _commands(),
    }
    written = "<!-- Written by `make docs`, from the code. -->"
    return {
        name: "\n\n".join([written, *(part.strip() for part in page if part)]) + "\n"
        for name, page in parts.items()
    }


def _arguments() -> Iterator[str]:
    titles = ("argument", "is", "default", "meaning")
    yield _ARGUMENTS
    yield table(titles, _parameters(RayLLMBatchOperator, RayLLMBatchOperator.template_fields))
    for group, model in GROUP_MODELS.items():
        yield f"## {group}"
        yield paragraph(inspect.getdoc(model))
        yield table(("leaf", *titles[1:]), [_leaf(leaf) for leaf in LEAVES.values() if leaf.group == group])
    yield _SENSOR
    yield table(titles, _parameters(RayLLMSliceSensor))


def _parameters(kind: Any, templates: Collection[str] = ()) -> Iterator[tuple[str, ...]]:
    docs = _documented(kind)
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        is_required = parameter.default is parameter.empty
        default = "required" if is_required else python_default(parameter.default)
        mark = " **T**" if name in templates else ""
        written = written_type(str(parameter.annotation), GROUPS)
        yield f"`{name}`{mark}", written, _unless_told(default, docs[name]), cell(docs[name])


def _leaf(leaf: Leaf) -> tuple[str, ...]:
    default, text = default_of(leaf.field), doc_of(leaf)
    shown = "required" if default is ... else python_default(default)
    bounds = f" ({text_of})" if (text_of := limits(leaf.field)) else ""
    written = written_type(annotation_of(leaf), GROUPS) + bounds
    return f"`{leaf.name}`", written, _unless_told(shown, text), cell(text)


def _documented(kind: Any) -> dict[str, str]:
    """What a docstring says of each parameter."""
    return dict(re.findall(r":param (\w+): (.+?)(?=\n\s*:param|\n\n|\Z)", inspect.getdoc(kind) or "", re.S))


def _unless_told(default: str, text: str) -> str:
    return "" if "Default:" in text else default


def _spec() -> Iterator[str]:
    yield _SPEC
    titles = ("field", "type", "limits", "default")
    in_job = [leaf for leaf in LEAVES.values() if leaf.is_in_job and leaf.path not in RUN_FIELDS]
    in_job.sort(key=lambda leaf: leaf.group is not None)
    yield table(titles, [_field(leaf) for leaf in in_job])
    yield _OF_THE_JOB
    yield table(
        (*titles, "meaning"),
        [(*_field(leaf), leaf.declared.doc) for leaf in LEAVES.values() if leaf.path in RUN_FIELDS],
    )


def _field(leaf: Leaf) -> tuple[str, ...]:
    default = default_of(leaf.field)
    shown = "required" if default is ... else json_default(default)
    return f"`{leaf.path}`", json_type(leaf.field.annotation), limits(leaf.field), shown


def _report() -> Iterator[str]:
    titles = ("field", "type", "meaning")
    yield _REPORT
    yield table(titles, _figures(Report))
    for name, field in Report.model_fields.items():
        for model in _models(field.annotation):
            yield f"## {name}"
            yield paragraph(model.__doc__)
            yield table(titles, _figures(model, f"{name}."))


def _figures(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, ...]]:
    docs = dict(re.findall(r"^(\w+): (.+?)(?=\n\w+:|\Z)", inspect.getdoc(model) or "", re.M | re.S))
    for name, field in model.model_fields.items():
        parts = _models(field.annotation)
        has_section = parts and not prefix
        shown = f"[{name}](#{name})" if has_section else json_type(field.annotation)
        yield f"`{prefix}{name}`", shown, cell(field.description or docs.get(name))
        if not has_section:
            for part in parts:
                yield from _figures(part, f"{prefix}{name}.")


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _settings() -> Iterator[str]:
    info = get_provider_info()
    options = info["config"]["ray_llm"]["options"].items()
    yield _CONFIGURATION
    rows = [(f"`{name}`", option["default"], cell(option["description"])) for name, option in options]
    yield table(("option", "default", "meaning"), rows)
    fields = info["connection-types"][0]["conn-fields"].items()
    yield _CONNECTION
    yield table(
        ("field", "meaning"),
        [(f"`{name}`", cell(field.get("description") or field["label"])) for name, field in fields],
    )


def _commands() -> Iterator[str]:
    yield _COMMANDS
    for name, help_text, parser in _parsers(make_parser()):
        arguments = [
            (f"`{_shown(action)}`", cell(action.help))
            for action in parser._actions
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
            and action.help != argparse.SUPPRESS
        ]
        yield f"## {name}"
        yield cell(help_text)
        yield table(("argument", "meaning"), arguments) if arguments else ""


def _parsers(parser: Any, prefix: str = "") -> Iterator[tuple[str, str | None, argparse.ArgumentParser]]:
    """The parsers of its commands and of their own commands, with the help of each."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest: choice for choice in action._choices_actions}
            for name, sub in action.choices.items():
                if name not in shown:  # another name of the one before
                    continue
                yield f"{prefix}{shown[name].metavar or name}", shown[name].help, sub
                yield from _parsers(sub, f"{prefix}{name} ")


def _shown(action: argparse.Action) -> str:
    """An argument as it is written, such as `--rows ROWS`."""
    value = str(action.metavar or ",".join(map(str, action.choices or [])) or action.dest.upper())
    if not action.option_strings:
        return value
    return action.option_strings[0] if action.nargs == 0 else f"{action.option_strings[0]} {value}"


if __name__ == "__main__":
    write()
