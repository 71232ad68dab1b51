"""docs/architecture.md is the floor plan: the tree and its imports are as it says."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = "airflow_provider_raydatallm"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: What the Airflow side may import from the Ray side, and nothing else.
WINDOWS = {
    "processor.store.published", "processor.tables.slice_view", "processor.request.row_code",
    "processor.request.row_function",
}  # fmt: skip
PUBLIC = {"exceptions", "get_provider_info", "reader"}


def block(title: str) -> list[str]:
    """The lines of the fenced block under a heading of docs/architecture.md."""
    found = re.search(rf"^#+ {re.escape(title)}$.*?^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no block under {title!r}"
    return found[1].splitlines()


@cache
def modules() -> dict[str, Path]:
    """All modules, by their names below the package."""
    root = ROOT / PACKAGE
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in root.rglob("*.py")
        if path.name != "__init__.py"
    }


@cache
def imports() -> dict[str, set[str]]:
    """Modules that each module imports: at its top, inside functions, and for types only."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                base = str(node.module)[len(PACKAGE) + 1 :]
                for alias in node.names:
                    below = f"{base}.{alias.name}".lstrip(".")
                    target = below if below in modules() else base
                    if target in modules():
                        found[name].add(target)
    return found


def room(module: str) -> str:
    """The folder of a module in the layers; its own name where it lies beside the folders."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "processor" else first


def test_floor_plan_is_the_tree() -> None:
    planned: set[str] = set()
    folders: list[str] = []
    for line in block("Floor plan")[1:]:
        names = line.split("#")[0].split()
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        if names[0].endswith("/"):
            folders = [*folders[:depth], names.pop(0).rstrip("/")]
        planned |= {".".join([*folders, name]) for name in names}
    assert planned == modules().keys()


@pytest.mark.slow
def test_no_import_makes_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as e:
        pytest.fail(f"circle of imports: {' -> '.join(reversed(e.args[1]))}")


@pytest.mark.parametrize("side", ["Airflow side", "Ray side"])
def test_imports_go_down_the_layers(side: str) -> None:
    layers = [name for line in block(side) for name in line.split()]
    rank = {name: i for i, name in enumerate(layers)}
    is_ray_side = side == "Ray side"
    rooms = {room(m) for m in modules() if m.startswith("processor.") == is_ray_side and m not in PUBLIC}
    assert rooms == rank.keys() - {"contract"} if is_ray_side else rooms == rank.keys()
    upward = [
        f"{source} imports {target}"
        for source, targets in imports().items()
        for target in targets
        if room(source) in rank
        and room(target) in rank
        and source.startswith("processor.") == is_ray_side
        and (target.startswith("processor.") == is_ray_side or room(target) == "contract")
        and rank[room(source)] > rank[room(target)]
    ]
    assert upward == []


def test_ray_side_never_imports_airflow_or_the_airflow_side() -> None:
    for name, path in modules().items():
        if not name.startswith(("processor.", "contract.")):
            continue
        foreign = {t for t in imports()[name] if not t.startswith(("processor.", "contract."))}
        assert foreign == set(), name
        assert not re.search(r"^\s*(import|from) airflow(\.|\s)", path.read_text(), re.MULTILINE), name


def test_contract_needs_neither_arrow_nor_ray() -> None:
    for name, path in modules().items():
        if name.startswith("contract."):
            assert {t for t in imports()[name] if not t.startswith("contract.")} == set(), name
            assert not re.search(r"^\s*(import|from) (ray|pyarrow)\b", path.read_text(), re.MULTILINE), name


def test_airflow_side_sees_the_ray_side_through_its_windows_only() -> None:
    for name, targets in imports().items():
        if name.startswith(("processor.", "contract.", "cli.")):
            continue
        assert {t for t in targets if t.startswith("processor.")} <= WINDOWS, name


def test_every_folder_says_what_it_is_for() -> None:
    for path in (ROOT / PACKAGE).rglob("__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, path
        assert len(doc) > 40, path
