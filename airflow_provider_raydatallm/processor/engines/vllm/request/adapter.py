"""How a request names its LoRA adapter to a worker."""

from __future__ import annotations

from functools import lru_cache

from pydantic_core import from_json, to_json

#: What a worker takes among the parameters of a request: the digest of its adapter, under this name.
ADAPTER = "adapter"


@lru_cache(1024)
def with_adapter(params: str, digest: str) -> str:
    """Returns the parameters (JSON), with the adapter."""
    return to_json({ADAPTER: digest, **from_json(params)}).decode()
