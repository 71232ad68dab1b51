"""Keys of requests: which requests are identical, and which coordinator has them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from airflow_provider_raydatallm.contract.spec import sampling
from airflow_provider_raydatallm.processor.columns import AGAIN

#: numpy sorts and compares such strings in machine code. It ignores trailing zeros, which does not matter
#: for strings of equal length.
KEY_TYPE = "S16"
#: The last field of a request (`request/requests`). The text occurs only where a field has that name: quotes
#: within strings are escaped.
_LAST_FIELD = '"sampling_params":'
#: Part of a request that is answered anew each time, and as `_LAST_FIELD` of no text.
_AGAIN = f'"{AGAIN}": true'


def has_key(request: str, *, always: bool) -> bool:
    """Whether the answer to an identical request may be this one's.

    :param always: also where sampling would draw another one.
    """
    return _AGAIN not in request and (always or is_deterministic(request))


def request_key(request: str) -> bytes:
    return hashlib.blake2b(request.encode(), digest_size=16).digest()


def is_deterministic(request: str) -> bool:
    """Whether sampling would give the same answer again: it is greedy, or has a seed."""
    place = request.rfind(_LAST_FIELD)
    if place >= 0:
        answer = _is_deterministic(request[place + len(_LAST_FIELD) : -1])
        if answer is not None:
            return answer
    # Its sampling parameters have a field of that name, or are not last.
    return sampling.is_deterministic(json.loads(request)["sampling_params"])


@lru_cache(maxsize=4096)
def _is_deterministic(params: str) -> bool | None:
    """:param params: JSON text; None is returned for other text."""
    try:
        return sampling.is_deterministic(json.loads(params))
    except ValueError:
        return None


@dataclass(frozen=True)
class Shard:
    """The part of all keys that one of `count` coordinators has."""

    index: int = 0
    count: int = 1

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """:param keys: `KEY_TYPE`."""
        is_here: np.ndarray = _shard_numbers(keys, self.count) == self.index
        return is_here


ALL_KEYS = Shard()


def shard_numbers(keys: Sequence[bytes], count: int) -> np.ndarray:
    """The index of each key's shard."""
    return _shard_numbers(np.frombuffer(b"".join(keys), KEY_TYPE), count)


def _shard_numbers(keys: np.ndarray, count: int) -> np.ndarray:
    numbers: np.ndarray = keys.view("<u8")[::2]
    return numbers % count
