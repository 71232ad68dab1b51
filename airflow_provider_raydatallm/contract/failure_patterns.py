"""Recognises failures of Ray, vLLM, torch and the model hub by their text: their kind, and what to do.

The Ray side applies it to exceptions (`root_error`), the Airflow side to a failed job's log (`job_failure`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_raydatallm.contract.errors import Kind

#: Prefixes that Ray and vLLM add to the lines of their processes.
_PREFIX = re.compile(
    r"^(?:\([^\n]{0,200}?\bpid=\d+[^)\n]*\)\s)+(?:ERROR \d\d-\d\d [\d:]+ \[[^\]\n]+\] ?)?", re.MULTILINE
)
#: Colours; an actor's ids before the cause of its death; causes that Ray only guesses; memory listings.
_NOISE = re.compile(
    r"\x1b\[[\d;]*m|^\t(?:class_name|actor_id|pid|name|namespace|ip): .*\n"
    r"|The actor died unexpectedly before finishing this task\.\n|\s*Some common causes include.*$"
    r"|^Object store memory usage: (?s:.*)|\nFailed to apply UDF transform after (?s:.*)",
    re.MULTILINE,
)
_CHAINED = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
#: The first line of an exception's message.
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Exception)(?:\(\w+\))?(?::|$)")
#: A log line after an exception.
_LOG_LINE = re.compile(r"\[?\d{4}-\d\d-\d\d|\[\d|@ray-llm |[A-Z]+ \d\d-\d\d |\s*$")
#: Exceptions that only report another one.
_WRAPPER = re.compile(
    r"UDF failed to process|SystemException$|root cause|EngineCore encountered an issue"
    r"|raised in its creation task|Subprocess\w*Error: Run cmd|UnserializableException|RayTaskError: ray::"
    r"|RuntimeError: Traceback \("
)
_PYDANTIC = re.compile(r"\d+ validation errors? for (\w+)\s+(.*?)(?: \[type=.*)?$", re.DOTALL)
_MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class FailurePattern:
    kind: Kind
    pattern: re.Pattern[str]
    advice: str


def _patterns(*rows: tuple[Kind, str, str]) -> tuple[FailurePattern, ...]:
    return tuple(FailurePattern(kind, re.compile(pattern), advice) for kind, pattern, advice in rows)


CAUSE_PATTERNS = _patterns(
    (
        "model",
        r"gated repo|GatedRepoError|\b40[13] Client Error[^\n]*huggingface",
        "The model needs permission: accept its licence on the hub, and set model_conn_id to a connection "
        "with an access token",
    ),
    (
        "model",
        r"is not a local folder and is not a valid model identifier|is not a valid git identifier"
        r"|RepositoryNotFoundError|RevisionNotFoundError|\b404 Client Error[^\n]*huggingface"
        r"|Invalid repository ID or local directory specified|HFValidationError",
        "Check model_source, and the revision in engine_kwargs; a private model needs model_conn_id",
    ),
    (
        "model",
        r"does not appear to have a file named|Cannot find any model weights"
        r"|no file named [^\n]* found in dir|Error while deserializing header"
        r"|No such file or directory: [^\n]*(?:config\.json|\.safetensors)",
        "The model's folder is incomplete: every node needs config.json, the tokenizer and the weights",
    ),
    (
        "transient",
        r"We couldn't connect to 'http",
        "The cluster's nodes do not reach the model hub: allow that, or set model_source to a folder that "
        "every node has, or to an s3:// address",
    ),
    (
        "gpu_memory",
        r"is less than desired GPU memory utilization",
        "Another process uses part of that GPU's memory: stop it, or lower gpu_memory_utilization in "
        "engine_kwargs",
    ),
    (
        "gpu_memory",
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "The model leaves too little of the GPU's memory for its cache: lower max_model_len or raise "
        "gpu_memory_utilization in engine_kwargs, or spread the model over more GPUs (tensor_parallel_size)",
    ),
    (
        "gpu_memory",
        r"(?:CUDA|HIP|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory",
        "The GPU's memory ran out: lower max_num_seqs, max_model_len or gpu_memory_utilization in "
        "engine_kwargs, or spread the model over more GPUs (tensor_parallel_size)",
    ),
    (
        "input",
        r"validation errors? for \w*(?:Config|Args)\b|greater than the derived max_model_len",
        "The engine refuses its arguments: check engine_kwargs",
    ),
    (
        "input",
        r"No module named",
        "Ship your own code with code_paths; install packages on the cluster's nodes, or with runtime_env",
    ),
    (
        "input",
        r"No matching distribution found|No solution found when resolving|Invalid requirement",
        "Check the packages in runtime_env, or better, install them on the cluster's nodes",
    ),
)

DEATH_PATTERNS = _patterns(
    (
        "engine",
        r"running low on memory|exit code (?:137|-9)\b",
        "Most likely the node's memory ran out: use nodes with more memory, or fewer workers (concurrency). "
        "Finished rows are kept",
    ),
    (
        "engine",
        r"node has died|node was terminated|NodeDiedError|LocalRayletDiedError|preempted",
        "The cluster lost a node. Finished rows are kept; a retry continues with the rest",
    ),
    (
        "engine",
        r"actor (?:has )?died|actor is dead|ActorDiedError|RayActorError|ActorUnavailableError"
        r"|EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
        r"|WorkerCrashedError|[Ww]orker (?:process has )?died|exit code (?:13[0-9]|-\d+)\b",
        "A process of the job died. Its last output is in the job's log. Finished rows are kept; a retry "
        "continues with the rest",
    ),
)


def find_pattern(text: str) -> FailurePattern | None:
    """Returns the first match: causes before deaths, which may be only their effect."""
    return next((p for p in (*CAUSE_PATTERNS, *DEATH_PATTERNS) if p.pattern.search(text)), None)


def strip_prefixes(text: str) -> str:
    """Removes what Ray and vLLM add to a message."""
    return _PREFIX.sub("", _NOISE.sub("", text))


def find_exceptions(text: str, *, wrappers: bool = False) -> list[str]:
    """Returns the messages of the exceptions whose tracebacks are in a text, in order, so deepest first.

    :param wrappers: include those that only report another exception.
    """
    messages = []
    for block in _CHAINED.split(strip_prefixes(text)):
        lines = block.splitlines()
        for i, line in enumerate(lines):
            if not _EXCEPTION.match(line) or (_WRAPPER.search(line) and not wrappers):
                continue
            end = i + 1
            while end < len(lines) and not _ends_message(lines[end]):
                end += 1
            messages.append(one_line("\n".join(lines[i:end])))
    return messages


def one_line(message: str) -> str:
    """Shortens an exception's message; pydantic's several lines become one."""
    if match := _PYDANTIC.search(message):
        message = f"{match[1]}: {' '.join(match[2].split())}"
    return message.strip()[:_MAX_CHARACTERS]


def _ends_message(line: str) -> bool:
    return bool(
        _LOG_LINE.match(line) or _EXCEPTION.match(line) or line.startswith(("Traceback (", "  File "))
    )
