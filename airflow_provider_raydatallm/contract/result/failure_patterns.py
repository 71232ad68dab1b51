"""How failures read in the words of Ray, vLLM, torch and the hub, of which kind they are, and what to do.

Pure text work with the standard library only, for both sides: the Ray side diagnoses an exception
(`root_error`), the Airflow side a job that ended without a report (`task.job.failure`).
"""

from __future__ import annotations

import re
import signal
from typing import Literal, NamedTuple

from airflow_provider_raydatallm.contract.result.failure import Failure, Kind

#: Prefixes that Ray and vLLM's processes put before the lines that they forward.
_PREFIX = re.compile(
    r"^(?:\([^\n]{0,200}?\bpid=\d+[^)\n]*\)\s)+(?:ERROR \d\d-\d\d [\d:]+ \[[^\]\n]+\] ?)?", re.MULTILINE
)
#: Colours; an actor's details before the cause of its death; causes that Ray only guesses; the list of what
#: fills a node's memory.
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
#: A log line, which ends an exception's message.
_LOG_LINE = re.compile(r"\[?\d{4}-\d\d-\d\d|\[\d|@ray-llm |[A-Z]+ \d\d-\d\d |\s*$")
#: Exceptions that only report another one.
_WRAPPER = re.compile(
    r"UDF failed to process|SystemException$|root cause|EngineCore encountered an issue"
    r"|raised in its creation task|Subprocess\w*Error: Run cmd|UnserializableException|RayTaskError: ray::"
    r"|RuntimeError: Traceback \("
)
_PYDANTIC = re.compile(r"\d+ validation errors? for (\w+)\s+(.*?)(?: \[type=.*)?$", re.DOTALL)
_MAX_CHARACTERS = 2000
_SENTENCE_CHARACTERS = 400
_WORDS_CHARACTERS = 80
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n[ \t]+(\S[^\n]{0,499})')
#: Files whose lines mean nothing to the user.
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|/airflow_provider_raydatallm/|^<|\.pyx$")
_FRAMES = 2
#: How vLLM names the processes of an engine that ended, with their exit codes; it ends others by SIGTERM.
_CORE_EXIT = re.compile(r"Failed core proc\(s\): \{'?([\w ]{1,40})'?: (-(?!15\b)\d+)")


class _Pattern(NamedTuple):
    kind: Kind
    pattern: str
    advice: str


_NO_HUB = r"We couldn't connect to 'https?:[^'\s]{0,40}'"

# fmt: off
_CAUSES = (
    _Pattern("model",
        r"gated repo|GatedRepoError|\b40[13] Client Error[^\n]*huggingface",
        "The model needs permission: accept its licence on the hub, and name the connection with an access "
        "token in model_conn_id"),
    _Pattern("model",
        r"is not a local folder and is not a valid model identifier|is not a valid git identifier"
        r"|RepositoryNotFoundError|RevisionNotFoundError|\b404 Client Error[^\n]*huggingface"
        r"|Invalid repository ID or local directory specified|HFValidationError",
        "Check model_source, and the revision in engine.kwargs; a private model needs model_conn_id"),
    _Pattern("model",
        r"does not appear to have a file named|Cannot find any model weights"
        r"|no file named [^\n]* found in dir|Error while deserializing header"
        r"|No such file or directory: [^\n]*(?:config\.json|\.safetensors)",
        "The model folder is incomplete: it needs config.json, the tokenizer and the weights, on every node"),
    _Pattern("transient",
        _NO_HUB,
        "The cluster's nodes do not reach the model hub: open the network to it, or set model_source to a "
        "folder that every node has, or to an s3:// address"),
    _Pattern("gpu_memory",
        r"is less than desired GPU memory utilization",
        "Something else uses that GPU's memory: stop it, or lower gpu_memory_utilization in engine.kwargs"),
    _Pattern("gpu_memory",
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "The model leaves too little of the GPU's memory for its cache: lower max_model_len or raise "
        "gpu_memory_utilization in engine.kwargs, or spread the model over more GPUs (tensor_parallel_size)"),
    _Pattern("gpu_memory",
        r"(?:CUDA|HIP|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory",
        "The GPU ran out of memory: lower max_num_seqs, max_model_len or gpu_memory_utilization in "
        "engine.kwargs, or spread the model over more GPUs (tensor_parallel_size)"),
    _Pattern("input",
        r"validation errors? for \w*(?:Config|Args)\b|greater than the derived max_model_len"
        r"|Args\.__init__\(\) got an unexpected keyword",
        "The engine rejects its arguments: check engine.kwargs"),
    _Pattern("input",
        r"No module named",
        "Ship your own code with code_paths; install packages on the cluster's nodes or with runtime_env"),
    _Pattern("input",
        r"No matching distribution found|No solution found when resolving|Invalid requirement",
        "Check the packages in runtime_env; better still, install them on the cluster's nodes"),
)

#: Of a process that Ray, or its node, killed for the memory that others lacked.
_MEMORY_DEATHS = (
    _Pattern("engine",
        r"running low on memory",
        "The node ran out of memory: use nodes with more memory, or fewer engine.workers"),
    _Pattern("engine",
        r"exit code (?:137|-9)\b|Failed core proc\(s\): \{[^}\n]{0,40}: -9\}",
        "Its node kills a process when memory runs out, as `dmesg` there says; so may a person or a "
        "platform. A retry can succeed"),
)

_DEATHS = (
    *_MEMORY_DEATHS,
    _Pattern("engine",
        r"node has died|node was terminated|NodeDiedError|LocalRayletDiedError|preempted",
        "The cluster lost a node: a retry can succeed"),
    _Pattern("engine",
        r"actor (?:has )?died|actor is dead|ActorDiedError|RayActorError|ActorUnavailableError"
        r"|EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
        r"|WorkerCrashedError|[Ww]orker (?:process has )?died|exit code (?:13[0-9]|-\d+)\b",
        "A process of the job died; its last output is in the job's log. A retry can succeed"),
)
# fmt: on

#: Where a text's root error stands. A traceback prints the deepest exception first. The log of a worker ends
#: with what the cause led to; the driver's may begin with exceptions that were handled.
Source = Literal["traceback", "worker_log", "driver_log"]


def diagnose(text: str, source: Source = "traceback") -> Failure | None:
    """Finds the root error in a text; None when it holds no exception. A known cause counts more than any
    other exception."""
    exceptions = find_exceptions(text)
    if source == "worker_log":
        exceptions = [e.splitlines()[0] for e in exceptions]  # the log's next lines are not the exception's
    causes = find_causes(exceptions)
    if not exceptions:
        return None
    is_last = source == "driver_log" or (source == "worker_log" and not causes)
    return classify((causes or exceptions)[-1 if is_last else 0])


def classify(root: str) -> Failure:
    """Looks up kind and advice of a root error. A cause counts before a death, which may be its effect."""
    pattern = next((p for p in (*_CAUSES, *_DEATHS) if re.search(p.pattern, root)), None)
    if pattern is None:
        return Failure("transient", first_line(root), cause=root)
    return Failure(pattern.kind, first_line(root), advice=(pattern.advice,), cause=root)


def is_out_of_memory(failure: Failure) -> bool:
    """Whether a GPU's or a node's memory ran out, or may have."""
    words = f"{failure.sentence}\n{failure.cause}"
    return failure.kind == "gpu_memory" or any(re.search(p.pattern, words) for p in _MEMORY_DEATHS)


def signal_failure(process: str, exit_code: int) -> Failure | None:
    """Returns the record of a process that a signal ended; None where it ended otherwise."""
    try:
        name = signal.Signals(exit_code - 128 if exit_code > 128 else -exit_code).name
    except ValueError:
        return None
    if name == "SIGKILL":
        return classify(f"{process} was killed by SIGKILL (exit code {exit_code})")
    return classify(f"{process} was ended by {name} (exit code {exit_code})")


def find_signal(text: str) -> Failure | None:
    """Returns the record of an engine's process that a signal ended, as vLLM's words in a text say."""
    for process, code in reversed(_CORE_EXIT.findall(text)):
        if failure := signal_failure(process, int(code)):
            return failure
    return None


def naming_model(failure: Failure, model_source: str) -> Failure:
    """Returns a failure with the model's name, which the hub's own words may leave out."""
    is_of_model = bool(failure.cause) and (failure.kind == "model" or re.search(_NO_HUB, failure.cause))
    is_named = not is_of_model or model_source in failure.sentence
    return failure if is_named else failure.about(f"the model {model_source}")


def first_line(root: str) -> str:
    """What a sentence quotes of a root error."""
    line = root.strip().partition("\n")[0].rstrip().removesuffix(".")
    return line if len(line) <= _SENTENCE_CHARACTERS else f"{line[:_SENTENCE_CHARACTERS]} ..."


def find_causes(exceptions: list[str]) -> list[str]:
    """Those exceptions that match a known cause."""
    return [e for e in exceptions if any(re.search(c.pattern, e) for c in _CAUSES)]


def known_words(root: str) -> str:
    """Returns the words of a known failure in a root error's message: they quote no row. "" without any."""
    text = root.partition(":")[2]
    for pattern in (*_CAUSES, *_DEATHS):
        # A longer match has words of others within.
        if (match := re.search(pattern.pattern, text)) and len(match[0]) <= _WORDS_CHARACTERS:
            return match[0]
    return ""


def is_users_file(file: str) -> bool:
    return not _FOREIGN.search(file)


def find_frames(text: str) -> tuple[str, ...]:
    """The last lines of the user's own code in a text's tracebacks."""
    frames = [f for f in _FRAME.findall(text) if is_users_file(f[0])]
    return tuple(f"at {file}:{line} in {name}: {code}" for file, line, name, code in frames[-_FRAMES:])


def strip_prefixes(text: str) -> str:
    """Removes what Ray and vLLM put around a text."""
    return _PREFIX.sub("", _NOISE.sub("", text))


def find_exceptions(text: str, *, wrappers: bool = False) -> list[str]:
    """The messages of the exceptions whose tracebacks are in a text, in their order: the deepest first.

    :param wrappers: include exceptions that only report another one.
    """
    messages = []
    for block in _CHAINED.split(strip_prefixes(text)):
        lines = block.splitlines()
        for i, line in enumerate(lines):
            if not _EXCEPTION.match(line) or (_WRAPPER.search(line) and not wrappers):
                continue
            end = i + 1
            while end < len(lines) and not _ends_exception(lines[end]):
                end += 1
            messages.append(one_line("\n".join(lines[i:end])))
    return messages


def one_line(message: str) -> str:
    """An exception's message, in one line where pydantic takes several."""
    if match := _PYDANTIC.search(message):
        message = f"{match[1]}: {' '.join(match[2].split())}"
    return message.strip()[:_MAX_CHARACTERS]


def _ends_exception(line: str) -> bool:
    return bool(
        _LOG_LINE.match(line) or _EXCEPTION.match(line) or line.startswith(("Traceback (", "  File "))
    )
