"""What all tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_raydatallm.contract.base import Group
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf
from airflow_provider_raydatallm.contract.spec.tasks.adapter import Adapter


@dataclass(frozen=True)
class MediaColumn:
    """The column with rows' files, and what may be read for it.

    :param argument: of the operator; errors name its leaves.
    :param noun: what a file is.
    :param timeout_s: for a site to send a file.
    """

    argument: str
    noun: str
    column: str
    max_bytes: int
    sources: tuple[str, ...]
    timeout_s: float


class Task(Group):
    """What is asked of a model. Properties answer for all kinds what those without an argument do without it.

    A kind is a file beside this one and a line in `tasks.AnyTask`. Its prompts and published columns are on
    the Ray side: `processor/engines/vllm/request/prompts` and `processor/request/answers/parsers`.
    """

    stands_beside_job: ClassVar[bool] = True
    #: Whether answers are drawn, so that equal requests may have different ones.
    draws: ClassVar[bool] = False
    #: Whether answers are numbers of a head, or a text's vector, which vLLM calls pooling.
    pools: ClassVar[bool] = False
    #: Whether an answer is a vector, whose length perhaps only the model knows.
    answers_vectors: ClassVar[bool] = False
    #: Whether an answer is a label in any case, which the model knows.
    answers_labels: ClassVar[bool] = False
    #: Whether answers are numbers of pairs of texts, one each.
    scores_pairs: ClassVar[bool] = False
    #: Functions of users that it takes.
    functions: ClassVar[frozenset[str]] = frozenset({"preprocess", "postprocess"})
    #: Whether each row's request needs a text.
    needs_prompt: ClassVar[bool] = True

    kind: str
    prompt: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="user message, or the row's text; `{column}` is replaced by the row's value, other braces stay. "
        "Wrap prompts with double braces in `airflow.sdk.literal`. A name that ends in `.jinja` is a file "
        "beside the DAG. To `transcribe`, it may be left out, or be what was said before, such as names.",
        of_row=True,
        stand_in="x",
    )

    @property
    def request_arguments(self) -> dict[str, Any]:
        """What builds a row's request, other than a function."""
        return {"prompt": self.prompt}

    @property
    def sampling(self) -> Mapping[str, Any]:
        """vLLM's sampling parameters."""
        return {}

    @property
    def texts(self) -> list[str]:
        """Texts that may have {column} fields."""
        return [self.prompt] if self.prompt is not None else []

    @property
    def shapes(self) -> list[str]:
        """Names of the arguments that fix what an answer must be; one at most is valid."""
        return []

    @property
    def labels_of_answers(self) -> tuple[str, ...] | None:
        """The texts of which an answer is one, where the job lists them."""
        return None

    @property
    def has_labels(self) -> bool:
        return self.answers_labels or self.labels_of_answers is not None

    @property
    def has_confidence(self) -> bool:
        """Whether each label is published with its probability."""
        return False

    @property
    def answers_per_row(self) -> int:
        return 1

    @property
    def numbers_per_answer(self) -> int | None:
        """None where only the model knows, or answers are texts."""
        return None

    @property
    def lora(self) -> Adapter:
        """The adapters that answer rows."""
        return Adapter()

    @property
    def media(self) -> MediaColumn | None:
        """The column with rows' files."""
        return None

    def given(self, job: Spec) -> set[str]:
        """Returns those arguments, set here, that not every engine can follow (`engines.base.SELDOM`)."""
        return set()

    def derived(self, job: Spec) -> Mapping[str, Any]:
        """Returns what decides answers and is in no argument alone."""
        return {}

    def check(self, job: Spec) -> None:
        """:raises ValueError: when it does not go together with the rest of the job."""
