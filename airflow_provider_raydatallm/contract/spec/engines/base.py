"""What all engines have in common, and what each says that it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator

from airflow_provider_raydatallm.contract.base import Group, Options
from airflow_provider_raydatallm.contract.spec.engine_arguments import (
    SPECULATIVE,
    answer_affecting_kwargs,
    with_scalars,
    with_speculation,
)
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf

_Workers = Annotated[int, Field(ge=1)]
Workers = _Workers | tuple[_Workers, _Workers] | Literal["auto"]

#: What not every engine can follow: arguments of tasks, and of `quality`.
SELDOM = frozenset({
    "chat_template", "reasoning_parser", "tools", "logprobs", "sampling_params['n']", "regex", "grammar",
    "adapter", "images", "audio", "quality.on_too_long",
})  # fmt: skip
#: Sampling parameters that vLLM refuses where it speculates.
_NOT_SPECULATIVE = ("logit_bias", "min_p")


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do: what it does not say, it cannot. Nobody asks for its name.

    :param reference: its class on the Ray side.
    :param tasks: the kinds of tasks that it does; None: it says so itself, on the cluster.
    :param follows: those of `SELDOM` that it follows.
    :param compares_labels: whether it tells how probable given texts are.
    :param bounds_json: whether it bounds the whitespace and the repetition in answers that are JSON.
    :param shares: whether it may stay on the cluster for other slices.
    :param reads_media_in_messages: whether it reads the files that messages name.
    :param loads_model: whether its workers load `model_source`.
    :param first_logprob: how a request asks it for the probability of an answer's tokens.
    """

    reference: str
    tasks: frozenset[str] | None
    follows: frozenset[str] = frozenset()
    compares_labels: bool = False
    bounds_json: bool = False
    shares: bool = False
    reads_media_in_messages: bool = False
    loads_model: bool = False
    first_logprob: Any = 0

    def __post_init__(self) -> None:
        if unknown := self.follows - SELDOM:
            raise ValueError(f"{self.reference} follows {sorted(unknown)}, which SELDOM does not list")


class Engine(Group):
    """What answers. Leaves that name code (a class as `kind`, vLLM's `trust_remote_code`) are no
    templates."""

    # A kind is a file beside this one, a line in `engines.AnyEngine`, and a folder in `processor/engines`.
    # Properties say for all kinds what is so without the argument that only some have.

    capabilities: ClassVar[Capabilities]
    #: What to do instead of an argument that it does not have.
    instead: ClassVar[Mapping[str, str]] = {}
    short_leaf: ClassVar[str | None] = "kind"
    short_text: ClassVar[str] = "the name of an engine, or of a profile"

    kind: str
    deduplicate: bool | None = leaf(
        None,
        affects=lambda job: Affects.REQUEST if job.engine.deduplicate else Affects.NOTHING,
        doc="run identical requests once. Default: only when sampling is deterministic (temperature 0, or a "
        "seed).",
    )
    blocks: int | None = leaf(
        None, affects=Affects.NOTHING, doc="blocks to cut the rows into. Default: one per batch.", ge=1
    )

    @property
    def reference(self) -> str:
        """Its class on the Ray side."""
        return self.capabilities.reference

    @property
    def arguments(self) -> Mapping[str, Any]:
        """vLLM's engine arguments."""
        return {}

    @property
    def gpu(self) -> str | None:
        """Ray's name of the GPU that its workers need."""
        return None

    @property
    def gpu_price(self) -> float | None:
        """What one of its GPUs costs an hour; None where that is not known, or it holds none."""
        return None

    @property
    def is_users_code(self) -> bool:
        return False

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def bounds_json(self) -> bool:
        """Whether it bounds the whitespace and the repetition in answers that are JSON."""
        # A backend of the user's may not read the provider's grammar.
        return self.capabilities.bounds_json and "structured_outputs_config" not in self.arguments

    @property
    def cache_folder(self) -> str | None:
        """The folder in which slices share its answers."""
        return None

    @property
    def cannot_compare_reason(self) -> str | None:
        """Why it cannot tell how probable labels are."""
        if not self.capabilities.compares_labels:
            return f"engine {self.kind!r} does not say how probable given texts are, as 'vllm' does"
        return None

    def check(self, job: Spec) -> None:
        """:raises ValueError: when it does not go together with the rest of the job."""


class ClusterEngine(Engine):
    """vLLM, or the user's own, on workers of the cluster."""

    kwargs: Options = leaf(
        dict,
        affects=Affects.ANSWERS,
        counts=answer_affecting_kwargs,
        doc='vLLM\'s engine arguments. A `max_model_len` of "auto" is estimated from a sample of rows.',
        secret=True,
    )
    accelerator: str | None = leaf(
        None, affects=Affects.NOTHING, doc="Ray's name of the GPU that the workers need, such as `L4`."
    )
    workers: Workers = leaf(
        1,
        affects=Affects.NOTHING,
        doc='a number, (min, max) to scale between, or `"auto"`: as many as the cluster\'s GPUs and the '
        "slice's work allow. With `limits.finish_by`, a slice's own engine has no more of (min, max) than "
        "finish in time.",
    )
    max_model_len_percentile: float = leaf(
        99.0,
        affects=lambda job: (
            Affects.REQUEST if job.engine.arguments.get("max_model_len") == "auto" else Affects.NOTHING
        ),
        doc='percentage of rows that must fit into a `max_model_len` of "auto".',
        gt=0,
        le=100,
    )
    batch_size: int | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="rows that go to a worker together, and the next ones when all of them are finished. Default: "
        'rows are admitted one by one with kind "vllm", else chosen by the provider.',
        ge=1,
    )
    max_concurrent_batches: int | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="batches per worker at once, of 128 rows without `batch_size`. Default: chosen by the provider.",
        ge=1,
    )

    gpu_hour_price: float | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="what a GPU of its workers costs an hour, by which the report says what the slice cost. Default: "
        "`[ray_llm] gpu_hour_price` of Airflow's configuration.",
        stand_in=1.0,
        gt=0,
        allow_inf_nan=False,
    )

    @field_validator("workers", mode="wrap")
    @classmethod
    def _name_kinds_of_workers(cls, value: Any, validate: Any) -> Any:
        try:
            return validate(value)
        except ValidationError:  # one for each of the kinds
            raise ValueError("give a number of at least 1, two of them, (min, max), or 'auto'") from None

    @field_validator("workers")
    @classmethod
    def _check_workers(cls, value: Workers) -> Workers:
        if isinstance(value, tuple) and value[0] > value[1]:
            raise ValueError(f"engine.workers {value} has its minimum above its maximum")
        return value

    @field_validator("kwargs")
    @classmethod
    def _to_nested_scalars(cls, value: dict[str, Any]) -> dict[str, Any]:
        return with_speculation(with_scalars(value, nested=True))

    @field_validator("kwargs")
    @classmethod
    def _check_max_model_len(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("max_model_len", 0) is None:
            return {name: v for name, v in value.items() if name != "max_model_len"}
        length = value.get("max_model_len", "auto")
        if length != "auto" and (type(length) is not int or length < -1 or length == 0):
            raise ValueError(f"engine.kwargs['max_model_len'] is {length!r}: a number of tokens, or 'auto'")
        return value

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.kwargs

    @property
    def gpu(self) -> str | None:
        return self.accelerator

    @property
    def gpu_price(self) -> float | None:
        return self.gpu_hour_price

    def check(self, job: Spec) -> None:
        policy, length = job.quality.on_too_long, self.kwargs.get("max_model_len", -1)
        if policy not in ("quarantine", "chunk") and length == -1:
            raise ValueError(
                f"quality.on_too_long={policy!r} needs engine.kwargs['max_model_len']: a number of tokens, "
                "or 'auto'"
            )
        max_tokens = job.task.sampling.get("max_tokens", 16) if job.task.draws else 0
        if max_tokens is None and (length == "auto" or policy == "truncate"):
            raise ValueError(
                "sampling_params['max_tokens'] is None, which leaves no room for a prompt: give a number, "
                "with max_model_len='auto' or quality.on_too_long='truncate'"
            )
        if policy == "truncate" and type(length) is type(max_tokens) is int and max_tokens >= length:
            raise ValueError(
                f"quality.on_too_long='truncate' leaves nothing of a prompt: max_tokens is {max_tokens} and "
                f"max_model_len {length}"
            )
        if job.task.media is not None and length == "auto":
            raise ValueError(
                f"engine.kwargs['max_model_len']='auto' counts tokens, and those of {job.task.media.noun}s "
                "are not known before the engine sees them: give a number"
            )
        speculative = sorted(SPECULATIVE & self.kwargs.keys())
        if speculative and (refused := [name for name in _NOT_SPECULATIVE if job.task.sampling.get(name)]):
            raise ValueError(
                f"sampling_params[{refused[0]!r}] and engine.kwargs[{speculative[0]!r}] exclude each other: "
                "vLLM does not take it where it speculates. Leave one of them out"
            )
        if job.task.lora and self.kwargs.get("enable_lora") is False:
            raise ValueError("engine.kwargs['enable_lora'] is False, and adapter needs it: leave it out")
