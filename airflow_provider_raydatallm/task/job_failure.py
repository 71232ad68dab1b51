"""Why a job died without a word of its own: the root error in what Ray says of it and in its last lines.

A driver that is killed, cannot be started or loses its node says nothing in a marked line. Pure: text in, an
exception's class and its message out.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from airflow.sdk.exceptions import AirflowException

from airflow_provider_raydatallm.contract.failure_patterns import (
    CAUSE_PATTERNS,
    find_exceptions,
    find_pattern,
    strip_prefixes,
)
from airflow_provider_raydatallm.contract.log_lines import MARK
from airflow_provider_raydatallm.exceptions import BY_KIND, RayJobStoppedError, RayLLMJobError

_EXIT_CODE = re.compile(r"^Job entrypoint command failed with exit code (-?\d+)")
_SETUP_FAILED = "runtime_env setup failed"
#: Where pip and uv begin to say what is wrong, up to their end.
_INSTALLER = re.compile(r"^\s*(?:ERROR:|error:|\u00d7) ", re.MULTILINE)
#: What a Python and a shell that cannot start something say, in a line of its own.
_NO_MODULE = re.compile(r"^\S*python[\d.]*: (No module named .+)$", re.MULTILINE)
_NOT_FOUND = re.compile(r"^.*: (?:command )?not found$", re.MULTILINE)


def explain_failure(
    status: str | None, message: str, last_lines: Sequence[str]
) -> tuple[type[AirflowException], str]:
    """What to raise for a job that is over and reported nothing.

    :param status: the job's; None when the cluster does not know it any more.
    :param message: what Ray says of it (`JobInfo.message`).
    :param last_lines: of what its driver wrote.
    """
    if status == "STOPPED":
        return RayJobStoppedError, "The job was stopped, by somebody else than its task"
    said = _root(message, "\n".join(line for line in last_lines if not line.startswith(MARK)))
    symptom = find_pattern(said)
    lines = [said, *([symptom.advice] if symptom else [])]
    return BY_KIND[symptom.kind] if symptom else RayLLMJobError, "\n".join(lines)


def _root(message: str, log: str) -> str:
    if message.startswith(_SETUP_FAILED):
        _, *wrong = _INSTALLER.split(message)
        said = " ".join(wrong[-1].split()) if wrong else "".join(find_exceptions(message)[-1:])
        return f"{_SETUP_FAILED}: {said}" if said else message.strip()
    found = _EXIT_CODE.match(message)
    if found is None and message:
        # Ray speaks for a driver that it lost, of all that there is.
        return " ".join(strip_prefixes(message).split())
    code = int(found[1]) if found else 0
    ended = _ended_by_signal(code)
    if ended:
        return f"The driver was ended by {ended} (exit code {code})"
    log = log or message
    if line := _NO_MODULE.search(log) or _NOT_FOUND.search(log):
        return str(line[line.lastindex or 0]).strip()
    exceptions = find_exceptions(log)
    causes = [e for e in exceptions if any(c.pattern.search(e) for c in CAUSE_PATTERNS)]
    if exceptions:
        return (causes or exceptions)[-1]
    return f"The driver ended with exit code {code} and said nothing" if found else "The driver said nothing"


def _ended_by_signal(code: int) -> str | None:
    number = code - 128 if code > 128 else -code
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
