"""How the requests of a task become prompts: their texts, what stands around them, and how they are cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec.tasks.generate import Generate
from airflow_provider_raydatallm.processor.columns import describe_error
from airflow_provider_raydatallm.processor.engines.control_tokens import Spans
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.labels import Labels
from airflow_provider_raydatallm.processor.engines.vllm.request.labels.questions import LabelQuestions
from airflow_provider_raydatallm.processor.engines.vllm.request.pooling import pooling_params
from airflow_provider_raydatallm.processor.engines.vllm.request.reasoning import reasoning_params
from airflow_provider_raydatallm.processor.engines.vllm.request.text_tokenizer import Messages, TextTokenizer
from airflow_provider_raydatallm.processor.engines.vllm.request.transcript import transcript_of_job

#: vLLM's default.
_MAX_TOKENS = 16
#: Attempts to shorten a message: text cut at a token may tokenize differently, and not always shorter.
_ATTEMPTS = 4


class Part(NamedTuple):
    """Messages that are rendered to one text, and which parts of their contents come from the row."""

    messages: Messages
    cells: Sequence[Spans]


class Prompt(NamedTuple):
    """
    :param params: JSON text: vLLM's sampling parameters, or what else the task asks of a worker.
    :param max_tokens: of the answer.
    """

    tokens: Sequence[int]
    params: str
    max_tokens: int

    @property
    def longest(self) -> int:
        """Tokens that the model sees at once."""
        return len(self.tokens)


class Prompts(ABC):
    def __init__(self, job: SliceJob, tokenizer: TextTokenizer) -> None:
        self._job, self._tokenizer = job, tokenizer

    def parts(self, request: Part) -> list[Part]:
        """Returns what is tokenized apart."""
        return [request]

    @abstractmethod
    def render(self, messages: Messages) -> str:
        """Returns a part as one text."""

    @abstractmethod
    def prompt(
        self, texts: Sequence[str], tokens: Sequence[list[int]], sampling_params: Mapping[str, Any]
    ) -> Prompt:
        """
        :param texts: the request's parts, rendered.
        :param tokens: those of each.
        :param sampling_params: of the row.
        :raises ValueError: when they do not suit the task.
        """

    @abstractmethod
    def shorten(self, request: Part, prompt: Prompt, limit: int) -> Prompt:
        """Returns a shorter prompt.

        :raises ValueError: when nothing can be cut so far.
        """


class ChatPrompts(Prompts):
    """Messages in the model's chat template."""

    def __init__(self, job: SliceJob, tokenizer: TextTokenizer) -> None:
        super().__init__(job, tokenizer)
        task = job.task_as(Generate)
        self._template = dict(task.chat_template_kwargs)
        if task.tools is not None:
            self._template["tools"] = list(task.tools)
        if job.compares_labels:  # by the first token, which is the label's and no thought's
            self._template.setdefault("enable_thinking", False)
        self._reasoning = reasoning_params(job)
        if task.images.column is not None:
            self._check_shows_images()
        self._labels: Labels | LabelQuestions | None
        if task.labels.multi:
            self._labels = LabelQuestions(task.choices or (), self._apply_template, tokenizer)
        else:
            self._labels = Labels.of_job(job, self._apply_template, tokenizer)

    def _check_shows_images(self) -> None:
        """:raises SliceError: when the template leaves no place for an image."""
        why = "it has no place for an image"
        try:
            texts = [self._apply_template([{"role": "user", "content": "x", "media": n}]) for n in (0, 1)]
            if self._tokenizer.count_control_tokens(texts[1]) > self._tokenizer.count_control_tokens(
                texts[0]
            ):
                return
        except Exception as e:  # templates raise any type
            why = describe_error(e)
        raise SliceError(
            f"images is given, and the chat template of model {self._job.model_source!r} takes none: {why}",
            kind="input",
            advice="Give a model that sees images, whose template takes parts of type 'image'",
        )

    def render(self, messages: Messages) -> str:
        if isinstance(self._labels, LabelQuestions):
            return self._labels.text_before(messages)
        return self._apply_template(messages)

    def _apply_template(self, messages: Messages, *, add_generation_prompt: bool = True) -> str:
        return self._tokenizer.apply_chat_template(
            _as_parts(messages), add_generation_prompt=add_generation_prompt, **self._template
        )

    def prompt(
        self, texts: Sequence[str], tokens: Sequence[list[int]], sampling_params: Mapping[str, Any]
    ) -> Prompt:
        if self._labels is not None:
            tree = self._labels.after(texts[0], tokens[0], sampling_params)
            return Prompt(tokens[0], tree.params, tree.most_tokens)
        max_tokens = int(sampling_params.get("max_tokens", _MAX_TOKENS) or 1)
        params = to_json({**sampling_params, **self._reasoning}).decode()
        return Prompt(tokens[0], params, max_tokens)

    def shorten(self, request: Part, prompt: Prompt, limit: int) -> Prompt:
        """Cuts the end of the longest message. The template's own end stays, and so does the system message
        if possible."""
        messages, cells = request
        by_length = sorted(
            range(len(messages)),
            key=lambda i: (messages[i]["role"] == "system", -len(messages[i]["content"])),
        )
        for i in by_length:
            [kept] = self._tokenizer([messages[i]["content"]])
            over = len(prompt.tokens) - limit
            for _ in range(_ATTEMPTS):
                kept = kept[: max(0, len(kept) - over)]
                cut, cut_cells = [*messages], [*cells]
                content = self._tokenizer.decode(kept)
                cut[i] = {**messages[i], "content": content}
                cut_cells[i] = _cut_cells(cells[i], messages[i]["content"], content)
                [tokens] = self._tokenizer([self.render(cut)])
                tokens = self._tokenizer.without_forged(cut, cut_cells, tokens, self.render)
                over = len(tokens) - limit
                if over <= 0:
                    return prompt._replace(tokens=tokens)
        raise ValueError(
            f"the prompt has {len(prompt.tokens):,} tokens, more than the {limit:,} that max_model_len "
            "leaves beside max_tokens, and cannot be shortened to fit"
        )


class PlainPrompts(Prompts):
    """A text as it is, between the special tokens that the tokenizer puts around it by itself."""

    def __init__(self, job: SliceJob, tokenizer: TextTokenizer) -> None:
        super().__init__(job, tokenizer)
        self._around = _find_around(tokenizer, "x")[0]
        before, after = self._around
        self._params = pooling_params(job, around=(len(before), len(after)))

    def render(self, messages: Messages) -> str:
        return _join(messages)

    def prompt(
        self, texts: Sequence[str], tokens: Sequence[list[int]], sampling_params: Mapping[str, Any]
    ) -> Prompt:
        _check_sampling(self._job, sampling_params)
        before, after = self._around
        return Prompt([*before, *tokens[0], *after], self._params, 0)

    def shorten(self, request: Part, prompt: Prompt, limit: int) -> Prompt:
        cut = _cut_text(prompt.tokens, self._around[1], limit, least=len(self._around[0]))
        return prompt._replace(tokens=cut)


class PairPrompts(Prompts):
    """A query and a text, with the special tokens that the tokenizer puts around a pair by itself."""

    def __init__(self, job: SliceJob, tokenizer: TextTokenizer) -> None:
        """:raises SliceError: when it puts nothing between the two."""
        super().__init__(job, tokenizer)
        [self._before, self._between, self._after], types = _find_around(tokenizer, "x", "x")
        if not self._between:
            raise SliceError(
                f"model {job.model_source!r} cannot score as asked: its tokenizer puts nothing between a "
                "query and a text",
                kind="input",
                advice="Give a reranker (a cross-encoder), or use task='generate'",
            )
        #: Special tokens after the query's that are of its type; None for a model without types.
        self._of_query = None
        if 1 in types:
            self._of_query = types.index(1) - len(self._before) - len(tokenizer(["x"])[0])

    def parts(self, request: Part) -> list[Part]:
        return [Part([message], [spans]) for message, spans in zip(*request, strict=True)]

    def render(self, messages: Messages) -> str:
        return _join(messages)

    def prompt(
        self, texts: Sequence[str], tokens: Sequence[list[int]], sampling_params: Mapping[str, Any]
    ) -> Prompt:
        _check_sampling(self._job, sampling_params)
        query, text = tokens
        ids = [*self._before, *query, *self._between, *text, *self._after]
        types_from = None
        if self._of_query is not None:
            types_from = len(self._before) + len(query) + self._of_query
        return Prompt(ids, pooling_params(self._job, types_from=types_from), 0)

    def shorten(self, request: Part, prompt: Prompt, limit: int) -> Prompt:
        """Cuts the text, and keeps the query."""
        [query] = self._tokenizer([_join(request.messages[:1])])
        around = len(self._before) + len(query) + len(self._between)
        return prompt._replace(tokens=_cut_text(prompt.tokens, self._after, limit, least=around))


class TranscriptPrompts(Prompts):
    """What stands before a transcript: the row's text, as if it had been said before, and Whisper's tokens of
    what to do."""

    def __init__(self, job: SliceJob, tokenizer: TextTokenizer) -> None:
        """:raises SliceError: when the model does not know the language."""
        super().__init__(job, tokenizer)
        self._transcript = transcript_of_job(job, tokenizer)

    def render(self, messages: Messages) -> str:
        return _join(messages)

    def prompt(
        self, texts: Sequence[str], tokens: Sequence[list[int]], sampling_params: Mapping[str, Any]
    ) -> Prompt:
        _check_sampling(self._job, sampling_params)
        return Prompt(self._transcript.prompt(tokens[0]), self._transcript.params, 0)

    def shorten(self, request: Part, prompt: Prompt, limit: int) -> Prompt:
        raise AssertionError("the spec refuses to shorten them")


#: By the names of the tasks.
PROMPTS: Mapping[str, type[Prompts]] = {
    "generate": ChatPrompts,
    "classify": PlainPrompts,
    "embed": PlainPrompts,
    "score": PairPrompts,
    "transcribe": TranscriptPrompts,
}


def _as_parts(messages: Messages) -> Messages:
    """Messages as templates take them, in parts where one of them shows media."""
    if not any("media" in message for message in messages):
        return messages
    parted = []
    for message in messages:
        others = {name: value for name, value in message.items() if name != "media"}
        text = {"type": "text", "text": message["content"]}
        parted.append({**others, "content": [*[{"type": "image"}] * message.get("media", 0), text]})
    return parted


def _join(messages: Messages) -> str:
    return "\n".join(message["content"] for message in messages)


def _check_sampling(job: SliceJob, sampling_params: Mapping[str, Any]) -> None:
    if names := sampling_params.keys() - {"temperature"}:
        raise ValueError(f"sampling_params[{min(names)!r}] means nothing to task={job.task.kind!r}")


def _find_around(tokenizer: TextTokenizer, *texts: str) -> tuple[list[list[int]], list[int]]:
    """Returns the special tokens before, between and after texts, and the types of all tokens."""
    whole, types = tokenizer.with_special_tokens(*texts)
    around: list[list[int]] = []
    rest = whole
    for tokens in tokenizer(texts):
        starts = range(len(rest) - len(tokens) + 1)
        start = next((i for i in starts if rest[i : i + len(tokens)] == tokens), None)
        if start is None:
            return [[] for _ in range(len(texts) + 1)], types
        around.append(rest[:start])
        rest = rest[start + len(tokens) :]
    return [*around, rest], types


def _cut_text(tokens: Sequence[int], after: Sequence[int], limit: int, least: int) -> Sequence[int]:
    """
    :param after: special tokens at the end, which stay.
    :param least: tokens that stay at the beginning.
    """
    if limit <= least + len(after):  # nothing of the text would be left
        raise ValueError(
            f"what stands before the text, such as the query alone, has {least:,} tokens, and max_model_len "
            f"leaves {limit - len(after):,}: it is the text that is cut"
        )
    return [*tokens[: limit - len(after)], *after]


def _cut_cells(cells: Spans, content: str, cut: str) -> Spans:
    """The cells of a content that was cut at its end."""
    if not content.startswith(cut.rstrip("\ufffd")):  # decoding changed it
        return [(0, len(cut))]
    return [(start, min(stop, len(cut))) for start, stop in cells]
