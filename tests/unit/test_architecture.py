"""docs/architecture.md is the floor plan: the tree and its imports are as it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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
    "processor.publish.staged_commands", "processor.publish.published", "processor.sinks.reading",
    "processor.store.run_record", "processor.tables.slice_view",
    "processor.request.row_code", "processor.request.row_function",
}  # fmt: skip
PUBLIC = {"exceptions", "get_provider_info", "reader"}
#: Functions of `store.file_names` about the files that a table shows, and who uses them beside the sinks.
FILE_NAMES = {"file_name", "number_of_file", "renumbered_file"}
KNOW_FILE_NAMES = {
    # Files have their names from the moment they are staged, and the commit has them: no sink chooses them.
    "processor.publish.parts": {"file_name"},
    "processor.publish.commit": {"renumbered_file"},
    "processor.publish.restore": {"renumbered_file"},
    # A commit that names other files is forged.
    "processor.store.commit_body": {"number_of_file"},
    # A quarantine that no document gives to a table may hold another table's rows: there is no sink to ask.
    "processor.store.ownership": {"number_of_file"},
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: The headings under which docs/architecture.md has layers, and the folder that each is about.
LAYERS = {"Airflow side": "", "Ray side": "processor.", "Inside engines": "processor.engines."}


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


def room(module: str, title: str) -> str | None:
    """A module's folder in the layers under a heading; its own name where it lies beside the folders; None
    outside of these layers."""
    inside = LAYERS[title]
    name = module.removeprefix(inside).partition(".")[0]
    is_within = module.startswith(inside) and name != "processor" and module not in PUBLIC
    return name if is_within else None


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


@pytest.mark.parametrize("title", LAYERS)
def test_imports_go_down_the_layers(title: str) -> None:
    line_of = {name: i for i, line in enumerate(block(title)) for name in line.split()}
    rooms = {module: room(module, title) for module in modules()}
    assert set(rooms.values()) - {None} == line_of.keys() - ({"contract"} if title == "Ray side" else set())
    upward = [
        f"{source} imports {target}"
        for source, targets in imports().items()
        for target in targets
        if (above := rooms[source]) is not None
        and (below := rooms[target]) is not None
        and above != below
        and line_of[above] >= line_of[below]
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


def test_nobody_outside_asks_of_which_kind_a_cluster_is() -> None:
    """The command line alone names the embedded head, which it starts and stops. Whoever cleans up sees what
    there is."""
    kinds = {
        m
        for m in modules()
        if m.startswith("clusters.")
        and m
        not in {
            f"clusters.{name}" for name in ("base", "blueprint", "derived", "kinds", "kuberay.made_clusters")
        }
    }
    outside = {m for m in modules() if not m.startswith(("clusters.", "cli."))}
    assert not {m: imports()[m] & kinds for m in outside if imports()[m] & kinds}
    for module in outside:
        if not module.startswith(("processor.", "contract.")):
            assert not re.search(r"is_local\b|local_head", modules()[module].read_text(encoding="utf-8"))


def test_sinks_and_the_reader_alone_know_what_a_table_looks_like() -> None:
    """Nobody else says `_SUCCESS`, opens a sink of a certain kind, or knows names of a version's files."""
    inside = {m for m in modules() if m.startswith("processor.sinks.")}
    kinds = inside - {"processor.sinks.base", "processor.sinks.kinds", "processor.sinks.reading"}
    named: dict[str, set[str]] = defaultdict(set)
    for module in modules().keys() - inside - {"reader"}:
        assert not imports()[module] & kinds, module
        tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
        docs = {ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, _DOCUMENTED)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docs:
                assert "_SUCCESS" not in node.value, module
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("store.file_names"):
                named[module] |= {alias.name for alias in node.names} & FILE_NAMES
    assert {module: names for module, names in named.items() if names} == KNOW_FILE_NAMES


@pytest.mark.parametrize(
    "name", ["processor.publish.published", "processor.publish.staged_commands", "processor.sinks.reading"]
)
def test_what_the_airflow_side_reads_and_commits_with_needs_neither_arrow_nor_ray(name: str) -> None:
    code = (
        f"import sys, {PACKAGE}.{name}; "
        "print([m for m in ('pyarrow', 'ray', 'pandas', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_folder_says_what_it_is_for() -> None:
    for path in (ROOT / PACKAGE).rglob("__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, path
        assert len(doc) > 40, path
