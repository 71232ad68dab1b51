"""What answers: an engine for each kind, with its own arguments; and engine profiles, which name one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, cast

from pydantic import Discriminator, Tag

from airflow_provider_raydatallm.contract.base import Group, plain_text
from airflow_provider_raydatallm.contract.spec.engines.base import Engine
from airflow_provider_raydatallm.contract.spec.engines.http import Http
from airflow_provider_raydatallm.contract.spec.engines.own import Own
from airflow_provider_raydatallm.contract.spec.engines.ray_data_llm import RayDataLlm
from airflow_provider_raydatallm.contract.spec.engines.vllm import Vllm
from airflow_provider_raydatallm.contract.spec.field import Affects, kinds_of, leaf

AUTO = "auto"
#: Arguments of vLLM that the provider's feeding does not have.
_NOT_FED = frozenset({"task_type", "tokenizer_mode", "skip_tokenizer_init"})


AnyEngine: TypeAlias = Annotated[
    Annotated[Vllm, Tag("vllm")]
    | Annotated[RayDataLlm, Tag("ray_data_llm")]
    | Annotated[Http, Tag("http")]
    | Annotated[Own, Tag("own")],
    Discriminator(lambda value: _tag(value)),
]
#: Engines by the kinds that people write. An own one is written as its class.
KINDS = cast("Mapping[str, type[Engine]]", kinds_of(AnyEngine))


class WrittenEngine(Group):
    """How people name an engine. A task resolves a profile before there is a job."""

    profile: str | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="an engine of the connection's extra `engines`; the other leaves override its own.",
    )
    kind: str = leaf(
        AUTO,
        affects=Affects.NOTHING,
        doc="`vllm`, fed by the provider; `ray_data_llm`, vLLM in Ray Data LLM's own processor; `auto`: "
        "`vllm` where possible; `http`: an endpoint with OpenAI's API; or "
        '`"package.module:Class"` of your own engine.',
    )


def _tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return str(kind) if kind in KINDS else "own"


def with_kind(leaves: Mapping[str, Any], model_source: str) -> dict[str, Any]:
    """Returns the leaves with the kind that "auto", which is the default, stands for: the faster one that can
    run the slice. `vllm` needs a Hugging Face tokenizer that every node can load.

    :raises ValueError: for a kind that is no text.
    """
    kind = plain_text(leaves.get("kind", AUTO))
    if not isinstance(kind, str):
        raise ValueError(f"engine.kind is {kind!r:.200}: give the name of an engine")
    if kind != AUTO:
        return {**leaves, "kind": kind}
    kwargs = leaves.get("kwargs") or {}
    is_fed = isinstance(kwargs, Mapping) and not _NOT_FED & kwargs.keys()
    is_plain = is_fed and not leaves.get("processor") and "://" not in model_source
    return {**leaves, "kind": "vllm" if is_plain else "ray_data_llm"}


def with_profile(engine: Any, profiles: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns the engine group with what the profile says that it names; its own leaves go first, those of
    `kwargs` and `processor` one by one.

    :param engine: the group, the name of a kind, or the name of a profile.
    :param profiles: the connection's.
    :raises ValueError: when there is no such profile; lists those that there are.
    """
    own = dict(engine) if isinstance(engine, Mapping) else {"profile": engine}
    if (name := own.pop("profile", None)) is None:
        return own
    if not isinstance(name, str):
        raise ValueError(f"engine.profile is {name!r}: give the name of a profile")
    if name not in profiles:
        known = f"it has {', '.join(map(repr, sorted(profiles)))}" if profiles else "it has none"
        raise ValueError(
            f"engine: {name!r} is neither {', '.join(map(repr, (AUTO, *KINDS)))} nor an engine profile of "
            f"the connection (its extra 'engines'): {known}"
        )
    if "profile" in profiles[name]:
        raise ValueError(f"engine profile {name!r} names another profile: write its leaves instead")
    merged = {**profiles[name], **own}
    for argument in ("kwargs", "processor"):
        both = [leaves[argument] for leaves in (profiles[name], own) if leaves.get(argument) is not None]
        if wrong := [values for values in both if not isinstance(values, Mapping)]:
            raise ValueError(f"engine.{argument} is a {type(wrong[0]).__name__}: give a dict")
        if both:
            merged[argument] = {key: value for values in both for key, value in values.items()}
    return merged


def names_profile(engine: Any) -> bool:
    return is_profile(engine) or (isinstance(engine, Mapping) and "profile" in engine)


def is_profile(engine: Any) -> bool:
    """Whether an engine that is given by name is a profile."""
    engine = plain_text(engine)
    return isinstance(engine, str) and engine != AUTO and engine not in KINDS and ":" not in engine
