"""Calls a function in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def in_own_process(function: Callable[..., T], *args: Any) -> T:
    """For what may end the process, and for what needs torch: what loads a tokenizer without it hides it from
    transformers for good."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()
