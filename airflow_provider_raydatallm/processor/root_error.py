"""Finds the root error under the layers that Ray, Ray Data and vLLM wrap around it."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_raydatallm.contract.result.errors import text_of
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.failure_patterns import (
    classify,
    diagnose,
    find_causes,
    find_exceptions,
    find_frames,
    find_signal,
    first_line,
    one_line,
    strip_prefixes,
)

#: vLLM's engine is a process of its own, which leaves the reason in its log.
_SEE_LOG = re.compile(r"[Ss]ee (?:root cause|stack trace)")
#: An actor's id in Ray's text: all that is left of it in an error that could not be unpickled.
_ACTOR = re.compile(r"\bactor_id(?:=|: )([0-9a-f]+)")
#: Attribute of an error that an engine raised before it got a row.
_STARTING = "raised_while_starting"
#: What Ray says of an actor whose constructor raised.
_START_RAISED = "The actor died because of an error raised in its creation task"
_START_ADVICE = "The engine failed while it started, before any row was asked: fix its code, or what it needs"


def root_error(error: BaseException, log_of: Callable[..., str] = lambda **process: "") -> Failure:
    """Diagnoses an exception.

    :param log_of: returns the end of a process's log, for engines that leave the reason there; called with
        `actor_id`, or with `node_id` and `pid`.
    """
    chain = list(_chain(error))
    for link in chain:
        if isinstance(failure := getattr(link, "failure", None), Failure):
            return _with_log(failure, getattr(link, "log", None), log_of)
    # Ray puts the traceback of a task, with all that led to it, into its own error's text.
    texts = [text_of(link) for link in chain]
    failure = next(filter(None, map(diagnose, texts)), None) or _diagnose_wrappers(chain, log_of)
    if failure is None:
        # Ray Data raises "from" an exception with an empty message.
        deepest = next((link for link in reversed(chain) if text_of(link)), error)
        words = [type(deepest).__name__, strip_prefixes(text_of(deepest))]
        failure = classify(one_line(": ".join(filter(None, words))))
    texts = [strip_prefixes(text) for text in texts]
    texts += ["".join(traceback.format_tb(link.__traceback__)) for link in reversed(chain)]
    failure = replace(failure, frames=next(filter(None, map(find_frames, texts)), ()))
    if any(map(_is_of_start, chain)):
        return replace(failure, before_rows=True, advice=failure.advice or (_START_ADVICE,))
    return failure


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Within, code of an engine runs that gets no row: what it raises itself quotes none."""
    try:
        yield
    except Exception as e:
        if not any(map(_is_of_ray, _chain(e))):  # which quotes processes that others use, too
            with contextlib.suppress(Exception):
                setattr(e, _STARTING, True)
        raise


def _is_of_start(link: BaseException) -> bool:
    """Whether an engine raised it before it got a row; to a constructor none comes."""
    is_of_constructor = _is_of_ray(link) and text_of(link).startswith(_START_RAISED)
    return is_of_constructor or getattr(link, _STARTING, False) is True


def _is_of_ray(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "ray"


def _with_log(failure: Failure, process: Mapping[str, Any] | None, log_of: Callable[..., str]) -> Failure:
    """The provider's own error says what to do; where its reason stands in a log, that is its cause."""
    text = log_of(**process) if process else ""
    log = tuple(strip_prefixes(text).splitlines())
    # What stands in the log of a process that a signal ended was not its end.
    found = find_signal(text) or diagnose(text, "worker_log")
    if found is None:
        return replace(failure, log=log or failure.log)
    return replace(
        failure,
        kind=found.kind if found.advice else failure.kind,
        sentence=f"{failure.sentence}: {first_line(found.cause)}",
        advice=(*found.advice, *failure.advice),
        cause=found.cause,
        log=log,
    )


def _diagnose_wrappers(chain: list[BaseException], log_of: Callable[..., str]) -> Failure | None:
    """Of exceptions that only report another one: from the log that they point to, else the first of them."""
    lists = (find_exceptions(text_of(link), wrappers=True) for link in chain)
    wrappers: list[str] = next(filter(None, lists), [])
    if pointers := [w for w in wrappers if _SEE_LOG.search(w)]:
        if failure := next(filter(None, map(find_signal, pointers)), None):
            return failure
        logs = "\n".join(log_of(actor_id=actor) for actor in _actors(chain))
        if failure := diagnose(logs, "worker_log"):
            return failure
    wrappers = pointers or wrappers
    return classify((find_causes(wrappers) or wrappers)[0]) if wrappers else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    link: object = error
    while isinstance(link, BaseException) and link not in seen:
        yield link
        seen.append(link)
        # Ray keeps the error that a task raised in `cause`; Ray Data chains the others.
        link = getattr(link, "cause", None) or link.__cause__


def _actors(chain: list[BaseException]) -> list[str]:
    """Ids of the actors that died; else of all actors that the texts mention."""
    dead = [str(actor) for link in chain if (actor := getattr(link, "actor_id", None))]
    return list(dict.fromkeys(dead or [a for link in chain for a in _ACTOR.findall(text_of(link))]))
