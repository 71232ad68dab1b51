"""Engine `vllm`: vLLM, fed by the provider."""

from __future__ import annotations

from typing import ClassVar, Literal

from airflow_provider_raydatallm.contract.base import OptionalSeconds
from airflow_provider_raydatallm.contract.spec.engine_arguments import SPECULATIVE
from airflow_provider_raydatallm.contract.spec.engines.base import SELDOM, Capabilities, ClusterEngine
from airflow_provider_raydatallm.contract.spec.engines.cache import CachingEngine
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf

_FOLDER = "airflow_provider_raydatallm.processor.engines"
_SHARED = f"{_FOLDER}.shared.engine:SharedVllmEngine"


class Vllm(CachingEngine, ClusterEngine):
    """vLLM, fed by the provider."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        f"{_FOLDER}.vllm.engine:VllmEngine",
        tasks=frozenset({"generate", "classify", "embed", "score", "transcribe"}),
        follows=SELDOM,
        compares_labels=True,
        bounds_json=True,
        shares=True,
        loads_model=True,
    )

    kind: Literal["vllm"] = leaf(affects=Affects.NOTHING)  # all built-in engines on the cluster are vLLM
    scope: Literal["slice", "shared"] = leaf(
        "slice",
        affects=Affects.NOTHING,
        doc="`slice`: the engine ends with the slice. `shared`: it stays for slices that need an equal one "
        "(model, arguments, accelerator, environment), which then start in seconds; it scales within "
        "`workers` of (min, max). Default: `shared` on an embedded Ray where possible, else `slice`.",
    )
    idle_timeout: OptionalSeconds = leaf(
        600.0,
        affects=Affects.NOTHING,
        doc='idle time after which a shared engine ends; None or "never". It ends sooner when another engine '
        "needs its resources. Default: 10 minutes.",
    )
    max_shared: int | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="shared engines on the cluster above which this slice queues before it starts another. Default: "
        "as many as its GPUs, or on CPUs the memory of its nodes, hold.",
        ge=1,
    )

    @property
    def reference(self) -> str:
        return _SHARED if self.is_shared else super().reference

    @property
    def is_shared(self) -> bool:
        return self.scope == "shared"

    @property
    def cannot_compare_reason(self) -> str | None:
        if speculative := sorted(SPECULATIVE & self.kwargs.keys()):
            return f"with engine.kwargs[{speculative[0]!r}] vLLM does not say how probable given tokens are"
        return None

    def check(self, job: Spec) -> None:
        super().check(job)
        if "reasoning_parser" in self.kwargs:
            raise ValueError(
                "engine.kwargs['reasoning_parser'] stands beside engine: give it as reasoning_parser, which "
                "takes the reasoning out of answers, too"
            )
        if "thinking_token_budget" in job.task.sampling and "reasoning_parser" not in job.task.given(job):
            raise ValueError(
                "sampling_params['thinking_token_budget'] needs reasoning_parser, which tells where thinking "
                "ends"
            )
