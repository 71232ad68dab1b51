"""Which of vLLM's engine arguments affect answers, and the types of its arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

#: Affect speed, memory or logging only, not answers beyond rounding. Every other argument may affect answers.
_NO_EFFECT_ON_ANSWERS = frozenset({
    # parallelism
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "data_parallel_size_local",
    "data_parallel_backend", "prefill_context_parallel_size", "decode_context_parallel_size",
    "distributed_executor_backend", "disable_custom_all_reduce", "enable_expert_parallel", "all2all_backend",
    "mm_encoder_tp_mode", "numa_bind",
    # memory
    "gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "block_size", "swap_space",
    "cpu_offload_gb", "kv_offloading_size", "kv_offloading_backend", "enable_prefix_caching",
    "prefix_caching_hash_algo", "enable_sleep_mode", "max_loras", "max_cpu_loras", "mm_processor_cache_gb",
    "mm_processor_cache_type", "skip_mm_profiling",
    # batching
    "max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "long_prefill_token_threshold",
    "max_num_partial_prefills", "max_long_partial_prefills", "enable_chunked_prefill",
    "disable_chunked_mm_input", "scheduling_policy", "async_scheduling", "stream_interval",
    # kernels and compilation; the model verifies a draft model's tokens
    "enforce_eager", "compilation_config", "optimization_level", "performance_mode", "attention_backend",
    "cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes", "speculative_config",
    "spec_method", "spec_model", "spec_tokens",
    # loading
    "download_dir", "hf_token", "max_parallel_loading_workers", "safetensors_load_strategy",
    "use_tqdm_on_load",
    # logs and metrics
    "served_model_name", "max_logprobs", "disable_log_stats", "disable_log_requests", "enable_log_requests",
    "aggregate_engine_logging", "otlp_traces_endpoint", "collect_detailed_traces", "kv_cache_metrics",
    "enable_mfu_metrics", "enable_logging_iteration_details", "show_hidden_metrics_for_version",
})  # fmt: skip


def answer_affecting_kwargs(engine_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in engine_kwargs.items() if name not in _NO_EFFECT_ON_ANSWERS}


#: Arguments that turn speculation on.
SPECULATIVE = frozenset({"speculative_config", "spec_method", "spec_model", "spec_tokens"})
#: Short forms of `speculative_config`, without a second model: vLLM drafts from the text so far ("ngram"), or
#: also from earlier answers ("suffix").
_SPECULATION: Mapping[str, Mapping[str, Any]] = {
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    },
    "suffix": {"method": "suffix"},
}


def with_speculation(engine_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with the short form of `speculative_config` as vLLM needs it.

    :raises ValueError: for a text that is none.
    """
    config = engine_kwargs.get("speculative_config")
    if not isinstance(config, str):
        return dict(engine_kwargs)
    if config not in _SPECULATION:
        known = ", ".join(map(repr, _SPECULATION))
        raise ValueError(
            f"engine.kwargs['speculative_config'] is {config!r}: use {known}, or vLLM's own dict"
        )
    return {**engine_kwargs, "speculative_config": dict(_SPECULATION[config])}


#: Arguments that are texts, also where they read as numbers.
_TEXTS = frozenset({
    "model", "served_model_name", "tokenizer", "hf_config_path", "download_dir", "revision", "code_revision",
    "tokenizer_revision", "hf_token", "show_hidden_metrics_for_version", "data_parallel_address",
    "master_addr", "model_weights", "spec_model", "stop", "bad_words",
})  # fmt: skip
_NUMBER = re.compile(r"[+-]?(\d+|(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?)", re.ASCII)


def with_scalars(arguments: Mapping[str, Any], *, nested: bool = False) -> dict[str, Any]:
    """Returns the arguments with "true" and "0.5" as vLLM needs them: templates render texts, and to vLLM the
    text "false" is true.

    :param nested: also in the dicts among them.
    :raises ValueError: naming the argument that rendered to "None".
    """
    scalars = {n: v if n in _TEXTS else _to_number(_to_boolean(n, v)) for n, v in arguments.items()}
    if nested:
        dicts = {name: v for name, v in scalars.items() if isinstance(v, Mapping)}
        scalars |= {name: with_scalars(v, nested=True) for name, v in dicts.items()}
    return scalars


def with_booleans(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with "true" and "false" as a chat template needs them, to which both are true. It
    prints numbers, which stay as they are written.

    :raises ValueError: naming the argument that rendered to "None".
    """
    return {name: _to_boolean(name, value) for name, value in arguments.items()}


def _to_boolean(name: str, value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else ""
    if text == "None":
        raise ValueError(f"{name!r} rendered to {value!r}: check the template")
    return text.lower() == "true" if text.lower() in ("true", "false") else value


def _to_number(value: Any) -> Any:
    number = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if number is None:
        return value
    if not number[2]:
        return int(number[0])
    # One that is too large stays a text: JSON has no other numbers.
    return number_of if math.isfinite(number_of := float(number[0])) else value


#: The one sampling parameter, and argument, of vLLM whose keys are numbers: ids of tokens.
LOGIT_BIAS = "logit_bias"
_TOKEN = re.compile(r"\d{1,9}", re.ASCII)
_COLUMN = re.compile(r"\{[^{}]*\}")


def with_biases(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters with `logit_bias` as JSON and OpenAI's API have it: numbers by the text of a
    token's id. Nulls, which a struct has for the tokens of other rows, are left out.

    :raises ValueError: for what is none, naming the key or the value.
    """
    biases = sampling_params.get(LOGIT_BIAS)
    if biases is None or (isinstance(biases, str) and _COLUMN.fullmatch(biases)):
        return dict(sampling_params)
    if not isinstance(biases, Mapping):
        raise ValueError(f"{LOGIT_BIAS!r} is {biases!r:.100}: give a dict of numbers by ids of tokens")
    numbers = {str(token): _to_number(bias) for token, bias in biases.items() if bias is not None}
    for token, bias in numbers.items():
        if not _TOKEN.fullmatch(token):
            raise ValueError(f"{LOGIT_BIAS!r} has the key {token!r}: give the id of a token, such as 42")
        if type(bias) not in (int, float) or not math.isfinite(bias):
            raise ValueError(f"{LOGIT_BIAS!r} of token {token} is {bias!r:.100}: give a number")
    return {**sampling_params, LOGIT_BIAS: numbers}


def with_token_ids(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters that `with_biases` returned as vLLM needs them: JSON has no numbers as keys."""
    biases = sampling_params.get(LOGIT_BIAS)
    if biases is None:
        return dict(sampling_params)
    return {**sampling_params, LOGIT_BIAS: {int(token): bias for token, bias in biases.items()}}
