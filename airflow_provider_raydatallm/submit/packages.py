"""Code and spec on their way to the cluster, as zips that Ray puts on every worker's path.

The cluster needs only ray[data] and vllm: the processor, the user's functions and the spec travel with the
job. A zip's name is its content's hash, so that equal code is uploaded once, and the user's code has a
version for the fingerprint.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.request.row_function import other_python

MAX_PACKAGE_BYTES = 100 << 20
#: How long a job that is told to stop has to put its last finished rows, before Ray ends it. Ray reads this
#: from the job's environment.
STOP_VARIABLE, STOP_SECONDS = "RAY_JOB_STOP_WAIT_TIME_S", "30"
_SKIPPED = frozenset({"__pycache__", "node_modules", ".git", ".venv", "venv"})
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can hold: equal files make equal zips


@dataclass(frozen=True)
class Package:
    """A zip. `digest` is of the files in it: how they are compressed differs between machines. `python` is
    the minor version of Python that its compiled code needs; "" where there is none."""

    name: str
    content: bytes = field(repr=False)
    digest: str
    python: str = ""


@cache
def processor_package() -> Package:
    """This provider itself."""
    root = Path(__file__).parents[1]
    return _package(
        (f"{root.name}/{name}", data)
        for name, data in _files(root)
        if name.split("/")[0] in ("__init__.py", "contract", "processor")
    )


def spec_package(job: SliceJob) -> tuple[str, Package]:
    """A spec as a Python package of its own; returns the package's import name too."""
    text = job.model_dump_json()
    name = f"ray_llm_spec_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return name, _package([(f"{name}/__init__.py", b""), (f"{name}/spec.json", text.encode())])


def function_package(name: str, files: Mapping[str, bytes], digest: str, python: str) -> Package:
    """A pickled function as a Python package of its own. Pickled bytes differ where the function does not, so
    its digest is given."""
    made = _package(
        ((f"{name}/{file}", data) for file, data in files.items()), "what the task's function uses"
    )
    return replace(made, digest=digest, python=python)


def check_python(packages: Iterable[Package], cluster: str | None) -> None:
    """:param cluster: the minor version of Python that the cluster runs; None when it is not known: then the
        job itself looks.
    :raises RayLLMInputError: when the cluster cannot run a package's compiled code."""
    for package in packages:
        if cluster is not None and package.python not in ("", cluster):
            raise RayLLMInputError(other_python(package.python, cluster))


def user_packages(
    functions: Iterable[str], code_paths: Sequence[str] | None, base: Path | None
) -> list[Package]:
    """The user's code.

    :param functions: `package.module:function` references; without `code_paths`, their own top-level packages
        are shipped.
    :param code_paths: a package's folder or a module's file (importable under its own name), or a folder
        without `__init__.py` (its content is put on the path). Relative ones are taken from `base`, the DAG
        file's folder.
    :raises RayLLMInputError: when a path does not exist, or what it names is over 100 MiB.
    """
    if code_paths is None:
        found = (_source_of(ref.split(":", 1)[0].split(".", 1)[0]) for ref in functions)
        paths = list(dict.fromkeys(p for p in found if p is not None))
    else:
        paths = [p if p.is_absolute() or base is None else base / p for p in map(Path, code_paths)]
    packages = []
    for path in paths:
        if path.is_dir():
            prefix = f"{path.name}/" if (path / "__init__.py").exists() else ""
            files: Iterable[tuple[str, bytes]] = ((prefix + name, data) for name, data in _files(path))
        elif path.suffix == ".py" and path.is_file():
            files = [(path.name, path.read_bytes())]
        else:
            raise RayLLMInputError(f"code_paths: {str(path)!r} is neither a folder nor a .py file")
        packages.append(_package(files, str(path)))
    return packages


def code_hash(packages: Sequence[Package]) -> str:
    return hashlib.sha256("".join(p.digest for p in packages).encode()).hexdigest()[:16] if packages else ""


def merged_runtime_env(
    user: Mapping[str, Any] | None, *, py_modules: Sequence[str], env_vars: Mapping[str, str]
) -> dict[str, Any]:
    """The user's `runtime_env` with the provider's modules and variables added.

    :raises RayLLMInputError: naming what both set, and local folders that a job cannot take along.
    """
    env = dict(user or {})
    theirs = dict(env.get("env_vars") or {})
    if both := sorted(theirs.keys() & env_vars.keys()):
        raise RayLLMInputError(
            f"runtime_env['env_vars'] sets {both[0]!r}, which the provider sets itself: leave it out"
        )
    modules = list(env.get("py_modules") or [])
    for argument, values in (("py_modules", modules), ("working_dir", [env.get("working_dir")])):
        for value in values:
            if value is not None and "://" not in str(value):
                raise RayLLMInputError(
                    f"runtime_env[{argument!r}] names the local {value!r}, which the cluster does not "
                    "have: use code_paths, or a URL"
                )
    env["py_modules"] = [*py_modules, *modules]
    env["env_vars"] = {STOP_VARIABLE: STOP_SECONDS, **theirs, **env_vars}
    return env


def _source_of(module: str) -> Path | None:
    """Where a top-level module lives here; None when it is not importable here and must be on the cluster."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        return None
    path = Path(str(spec.origin))
    return path.parent if path.name == "__init__.py" else path


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if (
            path.is_file()
            and path.suffix != ".pyc"
            and not any(p in _SKIPPED or p.startswith(".") for p in parts)
        ):
            yield "/".join(parts), path.read_bytes()


def _package(files: Iterable[tuple[str, bytes]], source: str = "") -> Package:
    buffer, total, digest = io.BytesIO(), 0, hashlib.sha256()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            total += len(data)
            if total > MAX_PACKAGE_BYTES:
                raise RayLLMInputError(
                    f"{source} holds more than {MAX_PACKAGE_BYTES >> 20} MiB of files: name the package "
                    "that is needed in code_paths"
                )
            digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    name = f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip"
    return Package(name, content, digest.hexdigest())
