"""An adapter, known by its content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: The files of an adapter that vLLM reads. Weights as pickles (`adapter_model.bin`) may hold code.
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: vLLM keeps the ids of a batch as 32-bit numbers.
_IDS = 2**31 - 1


@dataclass(frozen=True)
class Adapter:
    """name: what people call it. url: where it lies. digest: hex digits, a hash of its files' content, by
    which requests, caches and checkpoints know it."""

    name: str
    url: str
    digest: str
    rank: int

    def __str__(self) -> str:
        return f"adapter {self.name!r}" + (f" ({self.url})" if self.name != self.url else "")


def lora_ids(digests: Iterable[str]) -> dict[str, int]:
    """vLLM's numbers for adapters, from their content, and different ones."""
    ids: dict[str, int] = {}
    for digest in sorted(set(digests)):
        number = int(digest[:15], 16) % _IDS
        while number + 1 in ids.values():
            number = (number + 1) % _IDS
        ids[digest] = number + 1
    return ids
