"""Checks the files of a model whose answers are numbers: what they say, vLLM has to do.

vLLM takes how token vectors are pooled, and what a head means, from the model's own files. What these say and
vLLM does not do would give other numbers than the model's authors publish, silently: that is refused before
an engine starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.embed import Embed
from airflow_provider_raydatallm.processor.request.answers.head_labels import head_size
from airflow_provider_raydatallm.processor.sizing.model_config import config_file, vector_size

#: Ways of pooling that vLLM knows.
_POOLED_BY = ("cls_token", "mean_tokens", "lasttoken")
#: Modules of sentence-transformers that vLLM runs.
_MODULES = ("Transformer", "Pooling", "Normalize", "Dense")


def check_pooling_model(job: SliceJob) -> None:
    """Checks the files of a model that are on this machine.

    :raises SliceError: naming what vLLM would do otherwise than the model says, or cannot do.
    """
    if not job.task.pools:
        return
    config_path = config_file(job.model_source)
    config = _read(config_path) if config_path is not None else None
    if config_path is None or not isinstance(config, dict):
        return  # it is loaded from a hub later
    if job.task.answers_vectors:
        _check_vectors(job, config, config_path.parent)
    else:
        _check_head(job, config)


def _check_head(job: SliceJob, config: Mapping[str, Any]) -> None:
    architectures = [str(name) for name in config.get("architectures") or []]
    if not any("Classification" in name or "Ranking" in name for name in architectures):
        instead = "task='embed'" if job.task.scores_pairs else "task='generate' with choices"
        _refuse(job, f"it has no classification head ({', '.join(architectures) or 'none'}): use {instead}")
    if any("TokenClassification" in name for name in architectures):
        _refuse(job, "its head labels tokens, not texts")
    numbers = head_size(config)
    if job.task.scores_pairs and numbers != 1:
        _refuse(job, f"its head gives {numbers} numbers a text, and a score is one: use task='classify'")


def _check_vectors(job: SliceJob, config: Mapping[str, Any], folder: Path) -> None:
    _check_dimensions(job, config)
    for module in _read(folder / "modules.json") or []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in _MODULES:
            _refuse(job, f"its modules.json has a module {kind!r}, which vLLM leaves out")
        if kind == "Pooling":
            pooling = _read(folder / str(module.get("path", "")) / "config.json") or {}
            _check_pooling(job, pooling)
        if kind == "Normalize" and not job.task_as(Embed).embedding.normalize:
            _refuse(job, "its vectors are of length 1", "Leave embedding.normalize out")
    prompts = _read(folder / "config_sentence_transformers.json") or {}
    name = prompts.get("default_prompt_name")
    text = (prompts.get("prompts") or {}).get(name) if name else None
    if text and job.task.prompt is not None and not job.task.prompt.startswith(text):
        _refuse(job, f"its texts begin with {text!r} (its prompt {name!r})", "Begin prompt with that")


def _check_dimensions(job: SliceJob, config: Mapping[str, Any]) -> None:
    asked = job.task_as(Embed).embedding.dimensions
    if asked is None:
        return
    size = vector_size(job.model_source, job.engine.arguments)
    if size is not None and asked > size:
        _refuse(job, f"embedding.dimensions is {asked}, and its vectors have {size} numbers")
    overrides = job.engine.arguments.get("hf_overrides")
    config = {**config, **(overrides if isinstance(overrides, dict) else {})}
    sizes = config.get("matryoshka_dimensions")
    if not (config.get("is_matryoshka") or sizes):
        _refuse(
            job,
            f"embedding.dimensions is {asked}, and its config.json does not say that its vectors may be cut",
            "If it was trained for that, set engine.kwargs['hf_overrides'] to {'is_matryoshka': True}",
        )
    if sizes and asked not in sizes:
        _refuse(job, f"embedding.dimensions is {asked}, and its vectors may be cut to {sizes}")


def _check_pooling(job: SliceJob, pooling: Mapping[str, Any]) -> None:
    modes = [
        name.removeprefix("pooling_mode_") for name, is_set in pooling.items()
        if name.startswith("pooling_mode_") and is_set is True
    ]  # fmt: skip
    if len(modes) > 1 or not set(modes) <= set(_POOLED_BY):
        _refuse(job, f"it pools by {' and '.join(modes)}, and vLLM by one of {', '.join(_POOLED_BY)}")


def _refuse(job: SliceJob, why: str, advice: str = "") -> None:
    raise SliceError(
        f"model {job.model_source!r} cannot {job.task.kind} as asked: {why}", kind="input", advice=advice
    )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
