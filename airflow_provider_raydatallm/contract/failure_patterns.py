"""What failures look like in the words of Ray, vLLM, torch and the hub, of which kind they are, and what to
do.

Pure text work on nothing but the standard library: the Ray side looks into an exception (`root_error`), the
Airflow side into the last words of a job that died (`job_failure`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_raydatallm.contract.errors import Kind

#: What Ray, and vLLM's processes, put before the lines that they pass on.
_PREFIX = re.compile(
    r"^(?:\([^\n]{0,200}?\bpid=\d+[^)\n]*\)\s)+(?:ERROR \d\d-\d\d [\d:]+ \[[^\]\n]+\] ?)?", re.MULTILINE
)
#: Colours; an actor's particulars before the cause of its death; causes that Ray only guesses; what a node's
#: memory holds.
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
#: A line that begins what an exception says.
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Exception)(?:\(\w+\))?(?::|$)")
#: Where a log goes on after an exception.
_LOG_LINE = re.compile(r"\[?\d{4}-\d\d-\d\d|\[\d|@ray-llm |[A-Z]+ \d\d-\d\d |\s*$")
#: Exceptions that only say that there was another.
_WRAPPER = re.compile(
    r"UDF failed to process|SystemException$|root cause|EngineCore encountered an issue"
    r"|raised in its creation task|Subprocess\w*Error: Run cmd|UnserializableException|RayTaskError: ray::"
    r"|RuntimeError: Traceback \("
)
_PYDANTIC = re.compile(r"\d+ validation errors? for (\w+)\s+(.*?)(?: \[type=.*)?$", re.DOTALL)
_MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class FailurePattern:
    """How a failure is known, of which kind it is, and what to do about it."""

    kind: Kind
    pattern: re.Pattern[str]
    advice: str


_Table = tuple[tuple[Kind, str, str], ...]

_CAUSES: _Table = (
    (
        "model",
        r"gated repo|GatedRepoError|\b40[13] Client Error[^\n]*huggingface",
        "The model needs permission: accept its licence on the hub, and name the connection with an access "
        "token in model_conn_id",
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
        "The model's folder is not whole: it needs config.json, the tokenizer and the weights, on every node",
    ),
    (
        "transient",
        r"We couldn't connect to 'http",
        "The cluster's nodes do not reach the model hub: let them, or give a folder that every node has, or "
        "an s3:// address",
    ),
    (
        "gpu_memory",
        r"is less than desired GPU memory utilization",
        "Something else holds a part of that GPU's memory: end it, or lower gpu_memory_utilization in "
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
        "Ship code of your own with code_paths; install packages on the cluster's nodes, or by runtime_env",
    ),
    (
        "input",
        r"No matching distribution found|No solution found when resolving|Invalid requirement",
        "Check the packages in runtime_env; better still, install them on the cluster's nodes",
    ),
)

_DEATHS: _Table = (
    (
        "engine",
        r"running low on memory|exit code (?:137|-9)\b",
        "Most likely its node's memory ran out: use nodes with more memory, or fewer workers (concurrency). "
        "Finished rows are kept",
    ),
    (
        "engine",
        r"node has died|node was terminated|NodeDiedError|LocalRayletDiedError|preempted",
        "The cluster lost a node. Finished rows are kept, and a retry goes on with the others",
    ),
    (
        "engine",
        r"actor (?:has )?died|actor is dead|ActorDiedError|RayActorError|ActorUnavailableError"
        r"|EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
        r"|WorkerCrashedError|[Ww]orker (?:process has )?died|exit code (?:13[0-9]|-\d+)\b",
        "A process of the job died. What it said last is in the job's log. Finished rows are kept, and a "
        "retry goes on with the others",
    ),
)


def _patterns(table: _Table) -> tuple[FailurePattern, ...]:
    return tuple(FailurePattern(kind, re.compile(pattern), advice) for kind, pattern, advice in table)


CAUSE_PATTERNS = _patterns(_CAUSES)
DEATH_PATTERNS = _patterns(_DEATHS)


def find_pattern(text: str) -> FailurePattern | None:
    """The first that the text shows: a cause before a death, which may be no more than its effect."""
    return next((s for s in (*CAUSE_PATTERNS, *DEATH_PATTERNS) if s.pattern.search(text)), None)


def strip_prefixes(text: str) -> str:
    """Without what Ray and vLLM put around it."""
    return _PREFIX.sub("", _NOISE.sub("", text))


def find_exceptions(text: str, *, wrappers: bool = False) -> list[str]:
    """What the exceptions say whose tracebacks are in a text, in their order, so the deepest first.

    :param wrappers: those too that only say that there was another.
    """
    found = []
    for block in _CHAINED.split(strip_prefixes(text)):
        lines = block.splitlines()
        for i, line in enumerate(lines):
            if not _EXCEPTION.match(line) or (_WRAPPER.search(line) and not wrappers):
                continue
            end = i + 1
            while end < len(lines) and not _ends(lines[end]):
                end += 1
            found.append(one_line("\n".join(lines[i:end])))
    return found


def one_line(said: str) -> str:
    """What an exception says; in one line where pydantic takes several."""
    if match := _PYDANTIC.search(said):
        said = f"{match[1]}: {' '.join(match[2].split())}"
    return said.strip()[:_MAX_CHARACTERS]


def _ends(line: str) -> bool:
    return bool(
        _LOG_LINE.match(line) or _EXCEPTION.match(line) or line.startswith(("Traceback (", "  File "))
    )
