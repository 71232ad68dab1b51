"""Types of errors of rows that tell what to change, and the words for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

#: The answer lacks its shape, or its end: `max_tokens` cut it, or the engine ended it as it repeated itself.
INVALID_OUTPUT = "InvalidOutput"
TRUNCATED_ANSWER = "TruncatedAnswer"
DEGENERATE_ANSWER = "DegenerateAnswer"
OF_ANSWERS = (INVALID_OUTPUT, TRUNCATED_ANSWER, DEGENERATE_ANSWER)
#: The prompt and `max_tokens` exceed `max_model_len`.
PROMPT_TOO_LONG = "PromptTooLong"
#: `postprocess` reads a column of the input that its row does not carry.
COLUMN_NOT_IN_REQUEST = "ColumnNotInRequest"

#: What keeps such rows out of quarantine the next time; `{}` is their number.
_CHANGES = {
    TRUNCATED_ANSWER: "Raise max_tokens: {} of the answers were cut",
    DEGENERATE_ANSWER: "Change the prompt, or set a repetition_penalty in sampling_params: {} of the answers "
    "repeated themselves without end",
    PROMPT_TOO_LONG: "Raise max_model_len, shorten the prompt, or set quality.on_too_long: {} of the prompts "
    "were too long",
    INVALID_OUTPUT: "Change the prompt, or raise quality.repair: {} of the answers lacked the shape that was "
    "asked for",
    COLUMN_NOT_IN_REQUEST: "Name the column in the prompt, or build the request with preprocess, which may "
    "use all: postprocess gets the columns of the request only, and {} of its rows lacked one that it reads",
    ModuleNotFoundError.__name__: "Install what the function imports on the cluster's nodes or with "
    "runtime_env, or ship it with code_paths: {} rows needed it",
}


def changes_for(reasons: Mapping[str, int]) -> list[str]:
    """Returns what to change, the most frequent reason first.

    :param reasons: how many rows have each type of error, perhaps with the function that raised it.
    """
    of_types: Counter[str] = Counter()
    for reason, rows in reasons.items():
        of_types[_type_of(reason)] += rows
    known = sorted((kind for kind in _CHANGES if of_types[kind]), key=lambda kind: -of_types[kind])
    return [_CHANGES[kind].format(f"{of_types[kind]:,}") for kind in known]


def may_be_asked_again(reasons: Mapping[str, int]) -> bool:
    """Whether some rows failed for what may be otherwise the next time.

    :param reasons: as of `changes_for`.
    """
    return any(_type_of(reason) not in _CHANGES for reason in reasons)


def _type_of(reason: str) -> str:
    """:param reason: a type of error, perhaps with the function that raised it."""
    return reason.partition(" in ")[0]
