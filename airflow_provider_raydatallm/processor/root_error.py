"""What really went wrong, from under the layers that Ray, Ray Data and vLLM put around it, and what to do
about it.

The root error comes first in the message: it is what people see, and search for. Then what to do, where that
is known, and the last lines of the user's own code that led there.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator

from airflow_provider_raydatallm.contract.errors import Kind, SliceError
from airflow_provider_raydatallm.contract.failure_patterns import (
    CAUSE_PATTERNS,
    find_exceptions,
    find_pattern,
    one_line,
    strip_prefixes,
)

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n[ \t]+(\S[^\n]*)')
#: Whose lines say nothing to the user.
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|/airflow_provider_raydatallm/|^<|\.pyx$")
_FRAMES = 2
#: vLLM's engine is a process of its own, which leaves the reason in its log.
_SEE_LOG = re.compile(r"[Ss]ee (?:root cause|stack trace)")
#: An actor in what Ray says of it: all that is left of it in an error that could not be unpickled.
_ACTOR = re.compile(r"\bactor_id(?:=|: )([0-9a-f]+)")


def root_error(error: BaseException, log_of: Callable[..., str] = lambda **process: "") -> tuple[Kind, str]:
    """The kind of a failure, and what to tell people about it.

    :param log_of: what a process wrote last, for engines that leave the reason there; asked for by
        `actor_id`, or by `node_id` and `pid`.
    """
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, SliceError):
            return _told(link, log_of)
    # Ray puts the traceback of a task, with all that led to it, into its own error's text.
    said = _first(find_exceptions(str(link)) for link in chain)
    if not said:
        said = _first(find_exceptions(str(link), wrappers=True) for link in chain)
        if pointers := [s for s in said if _SEE_LOG.search(s)]:
            said = _logged("\n".join(log_of(actor_id=actor) for actor in _actors(chain))) or pointers
    if not said:
        # Ray Data raises "from" an exception without a word.
        deepest = next((link for link in reversed(chain) if str(link)), error)
        said = [one_line(f"{type(deepest).__name__}: {strip_prefixes(str(deepest))}")]
    root = (_causes(said) or said)[0]
    symptom = find_pattern(root)
    lines = [root, *([symptom.advice] if symptom else []), *_frames(chain)]
    return symptom.kind if symptom else "transient", "\n".join(lines)


def _told(error: SliceError, log_of: Callable[..., str]) -> tuple[Kind, str]:
    """What an error of the provider's own says, after the reason that stands in a log."""
    kind: Kind = getattr(error, "kind", "transient")
    said = strip_prefixes(str(error.args[0] if error.args else error))
    log = getattr(error, "log", None)
    logged = _logged(log_of(**log)) if log else []
    if not logged:
        return kind, said
    symptom = find_pattern(logged[0])
    return symptom.kind if symptom else kind, "\n".join(
        [logged[0], said, *([symptom.advice] if symptom else [])]
    )


def _logged(log: str) -> list[str]:
    """The causes in a process's log; else the last exception in it."""
    # A log goes on after what an exception said in its first line.
    said = [s.splitlines()[0] for s in find_exceptions(log)]
    return _causes(said) or said[-1:]


def _first(lists: Iterator[list[str]]) -> list[str]:
    return next((found for found in lists if found), [])


def _causes(said: list[str]) -> list[str]:
    return [s for s in said if any(c.pattern.search(s) for c in CAUSE_PATTERNS)]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    link: object = error
    while isinstance(link, BaseException) and link not in seen:
        yield link
        seen.append(link)
        # Ray keeps the error that a task raised in `cause`; Ray Data chains the others.
        link = getattr(link, "cause", None) or link.__cause__


def _actors(chain: list[BaseException]) -> list[str]:
    """Ids of the actors that broke; else of all that are spoken of."""
    broken = [str(actor) for link in chain if (actor := getattr(link, "actor_id", None))]
    return list(dict.fromkeys(broken or [a for link in chain for a in _ACTOR.findall(str(link))]))


def _frames(chain: list[BaseException]) -> list[str]:
    """The last lines of the user's code, as far as the root error came through any."""
    texts = [strip_prefixes(str(link)) for link in chain]
    texts += ["".join(traceback.format_tb(link.__traceback__)) for link in reversed(chain)]
    for text in texts:
        frames = [f for f in _FRAME.findall(text) if not _FOREIGN.search(f[0])]
        if frames:
            return [f"at {file}:{line} in {name}: {code}" for file, line, name, code in frames[-_FRAMES:]]
    return []
