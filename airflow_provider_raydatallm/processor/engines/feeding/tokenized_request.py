"""Requests as workers take them, and what an engine gives its feeders to make them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic_core import to_json


@dataclass(frozen=True)
class TokenizedRequest:
    """
    :param tokens: of the prompt; none where the worker tokenizes it.
    :param params: JSON text of what the engine asks of a worker, such as sampling parameters.
    :param total_tokens: that the model sees at once: of the prompt plus max_tokens.
    :param max_tokens: of the answer.
    :param shortened: whether the prompt was cut to the tokenizer's limit.
    :param adapter: the digest of its LoRA adapter, which `params` names too; "" without.
    :param error: why the request cannot be sent; there are no tokens then.
    """

    tokens: Sequence[int] = ()
    params: str = "{}"
    total_tokens: int = 0
    max_tokens: int = 0
    shortened: bool = False
    adapter: str = ""
    error: Exception | None = None


class RequestTokenizer(Protocol):
    def __call__(self, requests: Sequence[str], /) -> list[TokenizedRequest]:
        """
        :param requests: JSON text of messages and sampling_params; with media, as `name_media` returns it.
        :returns: one for each. A request that cannot be sent has an `error`, and does not affect others.
        """


#: Opens an engine's tokenizer, in a feeder's process. Picklable.
OpenTokenizer = Callable[[], RequestTokenizer]


def name_media(request: str, files: Sequence[bytes]) -> str:
    """The request with its media, by their content: so it is another one with another image."""
    digests = [hashlib.blake2b(file, digest_size=16).hexdigest() for file in files]
    return f'{{"media":{to_json(digests).decode()},{request[1:]}'
