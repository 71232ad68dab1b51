"""Code in the guides works: Python is run, JSON and commands are read by what reads them in earnest."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from airflow_provider_raydatallm.cli.main import make_parser
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.hooks.connection import EXTRAS
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
#: Pages whose blocks are whole. On other pages some show a part, or an output.
GUIDES = ["index.md", "first-steps.md", "concepts.md", "coming-from.md", "troubleshooting.md"]
PAGES = [*(DOCS / name for name in GUIDES), *sorted((DOCS / "how-to").glob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)


def _blocks() -> Iterator[Any]:
    for page in PAGES:
        for number, (_, language, code) in enumerate(_FENCE.findall(page.read_text(encoding="utf-8")), 1):
            yield pytest.param(language, textwrap.dedent(code), id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("language", "code"), _blocks())
def test_code_of_a_guide_works(language: str, code: str) -> None:
    {"python": _run_python, "json": _read_json, "sh": _read_commands}[language](code)


def test_guides_have_code_of_each_language() -> None:
    assert {block.values[0] for block in _blocks()} == {"python", "json", "sh"}


@pytest.mark.parametrize(
    "command",
    [
        "make nothing",
        "airflow-ray-llm slice OUT",
        "airflow dags tests a b",
        "airflow-ray-llm plan spec.json --price 2",
        "pip install 'airflow-provider-raydatallm[s4]'",
        "unknown",
        'export AIRFLOW_CONN_RAY_DEFAULT=\'{"conn_type": "ray"\'',
    ],
)
def test_command_that_does_not_exist_is_noticed(command: str) -> None:
    with pytest.raises((AssertionError, SystemExit, ValueError)):
        _read_commands(command)


def _run_python(code: str) -> None:
    exec(compile(code, "guide", "exec"), {"__name__": "guide"})


def _read_json(code: str) -> None:
    value = json.loads(code)
    if "input_path" in value:
        SliceJob.model_validate(value)
    else:  # an extra of a connection
        assert value.keys() <= EXTRAS | {"endpoint_url", "region_name", "role_arn"}


def _read_commands(code: str) -> None:
    for line in code.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line.partition(" > ")[0])
        match Path(program).name:
            case "make":
                targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
                assert arguments[0] in targets, line
                assert all("=" in argument for argument in arguments[1:]), line
            case "airflow-ray-llm":
                make_parser().parse_args(arguments)
            case "airflow" if arguments[0] == "ray-llm":
                make_parser().parse_args(arguments[1:])
            case "airflow":
                _airflow_parser().parse_args(arguments)
            case "pip":
                assert arguments.pop(0) == "install", line
                _check_requirements(arguments)
            case "export":
                _check_variable(*arguments[0].split("=", 1))
            case _:
                raise AssertionError(f"{line}: how is it checked?")


def _check_requirements(texts: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {
        canonicalize_name(requirement.name): requirement.specifier
        for extra in project["optional-dependencies"].values()
        for requirement in map(Requirement, extra)
    }
    for requirement in map(Requirement, texts):
        if requirement.name == project["name"]:
            assert requirement.extras <= project["optional-dependencies"].keys(), requirement
        elif requirement.specifier:
            assert requirement.specifier == ranges[requirement.name], requirement


def _check_variable(name: str, value: str) -> None:
    assert name.startswith("AIRFLOW_CONN_"), name
    if value.startswith("{"):
        assert json.loads(value)["conn_type"] in ("ray", "generic")
    else:
        assert value in ("ray://local", "ray://kuberay")


@cache
def _airflow_parser() -> argparse.ArgumentParser:
    return cli_parser.get_parser()
