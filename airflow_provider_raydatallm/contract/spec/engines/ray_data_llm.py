"""Engine `ray_data_llm`: vLLM in Ray Data LLM's own processor."""

from __future__ import annotations

from typing import ClassVar, Literal

from airflow_provider_raydatallm.contract.base import Options
from airflow_provider_raydatallm.contract.spec.engines.base import Capabilities, ClusterEngine
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf


class RayDataLlm(ClusterEngine):
    """vLLM in Ray Data LLM's own processor."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        "airflow_provider_raydatallm.processor.engines.ray_data_llm:RayDataLLM",
        tasks=frozenset({"generate"}),
        follows=frozenset({"regex", "grammar"}),
        reads_media_in_messages=True,
        loads_model=True,
    )

    kind: Literal["ray_data_llm"] = leaf(affects=Affects.NOTHING)
    processor: Options = leaf(
        dict,
        affects=Affects.ANSWERS,  # may hold a chat template
        doc="options of Ray Data LLM's processor, which `auto` then selects: its stages "
        '(`tokenize_stage={"concurrency": 4}`), `placement_group_config`, `preprocess_map_kwargs`, '
        "`postprocess_map_kwargs`.",
        secret=True,
    )
