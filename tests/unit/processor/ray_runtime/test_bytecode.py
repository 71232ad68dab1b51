from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_raydatallm.processor.ray_runtime import bytecode

_PROGRAM = """
import json, sys
from bytecode import bytecode_variables, keep_bytecode
keep_bytecode()
import transformers
print(json.dumps(bytecode_variables()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Where Ray would have unpacked the job's code, and a large package without bytecode."""
    folder = tmp_path / "_ray_pkg_1"
    folder.mkdir()
    (folder / "bytecode.py").write_text(Path(bytecode.__file__).read_text())
    (tmp_path / "site" / "transformers").mkdir(parents=True)
    (tmp_path / "site" / "transformers" / "__init__.py").write_text("")
    return folder


def _run(package: Path, **variables: str) -> dict[str, str]:
    path = os.pathsep.join(str(p) for p in (package, package.parent / "site"))
    env = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")} | {"PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=env | variables, capture_output=True, text=True, check=True
    )
    kept: dict[str, str] = json.loads(run.stdout)
    return kept


def _files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*.pyc") if "transformers" in str(p))


def test_job_keeps_bytecode_beside_its_code_where_python_keeps_none(package: Path) -> None:
    kept = _run(package, PYTHONDONTWRITEBYTECODE="1")
    assert kept == {"PYTHONPYCACHEPREFIX": str(package / ".bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    assert len(_files(package)) == 1
    assert not _files(package.parent / "site")
    assert _run(package, **kept) == {}  # a process that was started with them has them


def test_nothing_changes_where_python_keeps_bytecode(package: Path) -> None:
    with_it = Path(package.parent / "site" / "transformers")
    for name in ("ray", "vllm"):
        other = with_it.parent / name
        other.mkdir()
        (other / "__init__.py").write_text("")
        (other / "__pycache__").mkdir()
        (other / "__pycache__" / f"__init__.{sys.implementation.cache_tag}.pyc").touch()
    assert _run(package) == {}
    assert _files(with_it)


def test_nothing_changes_outside_a_job_or_where_the_job_says_so(package: Path) -> None:
    said = {"runtime_env": {"env_vars": {"PYTHONDONTWRITEBYTECODE": "1"}}}
    asked = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(said), "PYTHONDONTWRITEBYTECODE": "1"}
    assert _run(package, **asked) == {}
    installed = package.rename(package.with_name("lib"))
    assert _run(installed, PYTHONDONTWRITEBYTECODE="1") == {}
    assert not _files(package.parent)
