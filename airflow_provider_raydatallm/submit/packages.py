"""Zip packages of code and spec, which Ray puts on the import path of every worker.

The cluster needs only ray[data] and vllm: the processor, the user's functions and the spec travel with the
job. A zip is named after its content's hash, so that equal code is uploaded once and the fingerprint knows
the version of the user's code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.log.redaction import check_no_secrets
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.request.row_function import describe_python_mismatch
from airflow_provider_raydatallm.submit.package_files import check_size, read_files, user_files

#: How long a stopping job may take to write its last finished rows before Ray kills it. Ray reads this from
#: the job's environment.
STOP_VARIABLE, STOP_SECONDS = "RAY_JOB_STOP_WAIT_TIME_S", "30"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: equal files make equal zips


@dataclass(frozen=True)
class Package:
    """A zip. `digest` is of its files, since compression differs between machines. `python` is the minor
    version of Python that its compiled code needs, "" without such code."""

    name: str
    content: bytes = field(repr=False)
    digest: str
    python: str = ""


@cache
def processor_package() -> Package:
    """The Ray side of this provider."""
    root = Path(__file__).parents[1]
    return zip_files(
        (f"{root.name}/{name}", data)
        for name, data in read_files(root)
        if name.split("/")[0] in ("__init__.py", "contract", "processor")
    )


def spec_package(job: SliceJob) -> tuple[str, Package]:
    """Returns the import name of a Python package that holds the spec, and the package."""
    text = job.model_dump_json().encode()
    name = f"ray_llm_spec_{hashlib.sha256(text).hexdigest()[:16]}"
    return name, zip_files([(f"{name}/__init__.py", b""), (f"{name}/spec.json", text)])


def check_python(packages: Iterable[Package], cluster_python: str | None) -> None:
    """:param cluster_python: the cluster's minor version of Python; None when unknown: the job itself checks
        then.
    :raises RayLLMInputError: when the cluster cannot run a package's compiled code."""
    for package in packages:
        if cluster_python is not None and package.python not in ("", cluster_python):
            sentence, advice = describe_python_mismatch(package.python, cluster_python)
            raise RayLLMInputError(sentence, advice=advice)


def user_packages(
    functions: Iterable[str], code_paths: Sequence[str] | None, base: Path | None
) -> list[Package]:
    """The user's code.

    :param functions: `package.module:function` references; without `code_paths`, their own top-level packages
        are shipped.
    :param code_paths: a package's folder or a module's file (importable under its own name), or a folder
        without `__init__.py` (its content is put on the path).
    :param base: folder of relative paths, the DAG file's.
    :raises RayLLMInputError: when a path does not exist, its files are over 100 MiB, or one of them must not
        travel (`package_files`).
    """
    if code_paths is None:
        sources = (find_source(ref.split(":", 1)[0].split(".", 1)[0]) for ref in functions)
        paths = list(dict.fromkeys(path for path in sources if path is not None))
    else:
        paths = [(base or Path()) / path for path in code_paths]
    packages = []
    for path in paths:
        if path.is_dir():
            prefix = f"{path.name}/" if (path / "__init__.py").exists() else ""
            files: Iterable[tuple[str, bytes]] = (
                (prefix + name, data) for name, data in user_files(path).items()
            )
        elif path.suffix == ".py" and path.is_file():
            files = [(path.name, path.read_bytes())]
        else:
            raise RayLLMInputError(f"code_paths: {str(path)!r} is neither a folder nor a .py file")
        packages.append(zip_files(files, str(path)))
    return packages


def code_hash(packages: Sequence[Package]) -> str:
    return hashlib.sha256("".join(p.digest for p in packages).encode()).hexdigest()[:16] if packages else ""


def merge_runtime_env(
    user: Mapping[str, Any] | None, *, py_modules: Sequence[str], env_vars: Mapping[str, str]
) -> dict[str, Any]:
    """Adds the provider's modules and variables to the user's `runtime_env`.

    :raises RayLLMInputError: naming a variable that both set or that holds a secret, or a local path, which
        the cluster lacks.
    """
    env = dict(user or {})
    try:
        check_no_secrets("runtime_env", env)
    except ValueError as e:
        raise RayLLMInputError(str(e)) from None
    user_vars = env.get("env_vars") or {}
    if conflicts := sorted(user_vars.keys() & env_vars.keys()):
        raise RayLLMInputError(
            f"runtime_env['env_vars'] sets {conflicts[0]!r}, which the provider sets itself",
            advice="Leave it out",
        )
    modules = list(env.get("py_modules") or [])
    for argument, values in (("py_modules", modules), ("working_dir", [env.get("working_dir")])):
        for value in values:
            if value is not None and "://" not in str(value):
                raise RayLLMInputError(
                    f"runtime_env[{argument!r}] names the local {value!r}, which the cluster does not have",
                    advice="Use code_paths, or a URL",
                )
    env["py_modules"] = [*py_modules, *modules]
    env["env_vars"] = {STOP_VARIABLE: STOP_SECONDS, **user_vars, **env_vars}
    return env


def find_source(module: str) -> Path | None:
    """The folder or file of a top-level module; None when only the cluster can import it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        return None
    path = Path(str(spec.origin))
    return path.parent if path.name == "__init__.py" else path


def zip_files(files: Iterable[tuple[str, bytes]], source: str = "") -> Package:
    """:param source: names the files in errors.
    :raises RayLLMInputError: when they are over 100 MiB."""
    buffer, total_bytes, digest = io.BytesIO(), 0, hashlib.sha256()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            total_bytes += len(data)
            check_size(total_bytes, source)
            digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    name = f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip"
    return Package(name, content, digest.hexdigest())
