"""Types of errors of rows that tell what to change, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping

#: The answer lacks its shape, or `max_tokens` cut it.
INVALID_OUTPUT = "InvalidOutput"
TRUNCATED_ANSWER = "TruncatedAnswer"
#: The prompt and `max_tokens` exceed `max_model_len`.
PROMPT_TOO_LONG = "PromptTooLong"

#: What keeps such rows out of quarantine the next time; `{}` is their number.
_CHANGES = {
    TRUNCATED_ANSWER: "Raise max_tokens: {} of the answers were cut",
    PROMPT_TOO_LONG: "Raise max_model_len, shorten the prompt, or set quality.on_too_long: {} of the prompts "
    "were too long",
    INVALID_OUTPUT: "Change the prompt, or raise quality.repair: {} of the answers lacked the shape that was "
    "asked for",
}


def changes_for(reasons: Mapping[str, int]) -> list[str]:
    """Returns what to change, the most frequent reason first.

    :param reasons: how many rows have each type of error.
    """
    known = sorted((kind for kind in _CHANGES if reasons.get(kind)), key=lambda kind: -reasons[kind])
    return [_CHANGES[kind].format(f"{reasons[kind]:,}") for kind in known]


def may_be_asked_again(reasons: Mapping[str, int]) -> bool:
    """Whether some rows failed for what may be otherwise the next time."""
    return any(kind not in _CHANGES for kind in reasons)
