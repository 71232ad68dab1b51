"""How Whisper is asked to write down a recording: the tokens before its transcript.

    <|startofprev|> words said before <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>

A model of one language has no token of it, nor of the task. Where nobody says the language, the worker asks
for its token first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.transcribe import Transcribe
from airflow_provider_raydatallm.processor.engines.vllm.request.text_tokenizer import TextTokenizer

#: What a worker takes in place of sampling parameters: a `Transcript`, under this name.
TRANSCRIPT = "transcript"
#: What Whisper's own code keeps of the words before: half of its positions, less one.
_MOST_BEFORE = 223
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True)
class Transcript:
    """
    :param words_before: the token before words that were said before.
    :param start: tokens that end the prompt, or come before that of the language.
    :param languages: tokens of languages, of which the model chooses one; none where it is known.
    :param then: tokens after the language that it chooses.
    """

    words_before: int
    start: Sequence[int]
    languages: Sequence[int]
    then: Sequence[int]

    def prompt(self, words: Sequence[int]) -> list[int]:
        """:param words: tokens of what was said before; their end is kept."""
        before = [self.words_before, *words[-_MOST_BEFORE:]] if words else []
        return [*before, *self.start]

    @cached_property
    def params(self) -> str:
        """What a worker takes in place of sampling parameters (JSON)."""
        return to_json({TRANSCRIPT: asdict(self)}).decode()


def transcript_of_job(job: SliceJob, tokenizer: TextTokenizer) -> Transcript:
    """:raises SliceError: when the model is no Whisper, or does not know the job's language."""
    tokens = tokenizer.added_tokens
    try:
        before, start, task, end = (
            tokens[f"<|{name}|>"]
            for name in ("startofprev", "startoftranscript", "transcribe", "notimestamps")
        )
    except KeyError as e:
        raise SliceError(
            f"the tokenizer of model {job.model_source!r} has no token {e}, which Whisper's have: "
            "task='transcribe' is for Whisper models",
            kind="input",
        ) from None
    languages = {m[1]: token for text, token in tokens.items() if (m := _LANGUAGE.fullmatch(text))}
    asked = job.task_as(Transcribe).audio.language
    if (tokenizer.read_json("generation_config.json") or {}).get("is_multilingual") is False:
        if asked not in (None, "en"):
            _refuse_language(job, "it is for English only")
        return Transcript(before, [start, end], [], [])
    if asked is None:
        return Transcript(before, [start], sorted(languages.values()), [task, end])
    if asked not in languages:
        _refuse_language(job, f"it knows {', '.join(sorted(languages))}")
    return Transcript(before, [start, languages[asked], task, end], [], [])


def _refuse_language(job: SliceJob, why: str) -> None:
    language = job.task_as(Transcribe).audio.language
    raise SliceError(
        f"audio.language is {language!r}, which model {job.model_source!r} cannot write: {why}",
        kind="input",
    )
