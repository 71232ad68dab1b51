"""What sampling parameters mean for answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_deterministic(sampling_params: Mapping[str, Any]) -> bool:
    """Whether sampling repeats its answer: it is greedy or has a seed."""
    seed = sampling_params.get("seed")
    return sampling_params.get("temperature") == 0 or seed not in (None, -1)  # vLLM: -1 means no seed
