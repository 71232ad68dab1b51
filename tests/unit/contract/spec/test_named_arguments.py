"""Every argument that a message, an advice or a page of the docs names exists, as people write it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.spec.leaves import ARGUMENTS, LEAVES
from airflow_provider_raydatallm.contract.spec.slice_job import GROUPS
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.sensors.ray_llm_slice import RayLLMSliceSensor
from tests.support.paths import ROOT

PACKAGE = ROOT / "airflow_provider_raydatallm"
#: `engine.kwargs`, and no module or attribute: `engine.py`, `self.engine.x`.
LEAF = re.compile(rf"(?<![\w./\[-])({'|'.join(GROUPS)})\.([a-z]\w*)(?![\w(/]|\.(?:py|md)\b)")
#: `force=True`, as code has it.
GIVEN = re.compile(r"(?:^|(?<=[\s`(]))([a-z]\w*)=(?:True|False|None|'|\"|\[)")
#: Of vLLM, Ray, Python and HTML, which texts name, too.
OTHERS = {
    "max_model_len", "distributed_executor_backend", "logging_config", "text", "type", "start_new_session",
    "logging_level", "log_to_driver", "proxy_location", "href",
}  # fmt: skip
#: A file.
SOURCE_HASH = "source.sha256"


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module, docstrings apart, f-strings with `{}` for their values."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
            yield node.lineno, node.value


def unknown_leaves(text: str) -> list[str]:
    return [m[0] for m in LEAF.finditer(text) if m[0] not in LEAVES and m[0] != SOURCE_HASH]


def unknown_arguments(text: str) -> list[str]:
    known = {*ARGUMENTS, *(leaf.name for leaf in LEAVES.values()), *OTHERS}
    for kind in (RayLLMBatchOperator, RayLLMSliceSensor):
        known |= inspect.signature(kind.__init__).parameters.keys()
    return [m[0] for m in GIVEN.finditer(text) if m[1] not in known]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_messages_name_arguments_that_exist(path: Path) -> None:
    found = [
        (line, name)
        for line, text in strings_of(path)
        for name in (*unknown_leaves(text), *unknown_arguments(text))
    ]
    assert found == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_pages_name_leaves_that_exist(page: Path) -> None:
    assert unknown_leaves(page.read_text(encoding="utf-8")) == []


def test_names_that_do_not_exist_are_found() -> None:
    assert unknown_leaves("set rerun.forced, or `engine.workers`") == ["rerun.forced"]
    assert unknown_arguments("set force_rerun=True") == ["force_rerun=True"]
