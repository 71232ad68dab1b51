"""Explains a job that ended without a report, from Ray's message about it and its last log lines.

A driver that is killed, cannot start or loses its node writes no marked line. Pure: text in, `Failure` out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_raydatallm.contract.log.marked_lines import MARK
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.failure_patterns import (
    classify,
    diagnose,
    find_exceptions,
    signal_failure,
    strip_prefixes,
)

_STOPPED = ("Ray's dashboard and `ray job stop` do so",)
_EXIT_CODE = re.compile(r"^Job entrypoint command failed with exit code (-?\d+)")
_SETUP_FAILED = "runtime_env setup failed"
#: Where pip's and uv's own error begins; it is the last part of their output.
_INSTALLER = re.compile(r"^\s*(?:ERROR:|error:|\u00d7) ", re.MULTILINE)
#: The line in which Python or a shell says that it cannot start something.
_NO_MODULE = re.compile(r"^\S*python[\d.]*: (No module named .+)$", re.MULTILINE)
_NOT_FOUND = re.compile(r"^.*: (?:command )?not found$", re.MULTILINE)


def explain_failure(status: str | None, message: str, last_lines: Sequence[str]) -> Failure:
    """Diagnoses a job that is over and reported nothing.

    :param status: the job's; None when the cluster no longer knows it.
    :param message: what Ray says about the job (`JobInfo.message`).
    :param last_lines: the end of its driver's log.
    """
    if status == "STOPPED":
        return Failure("stopped", "the Ray job was stopped by somebody, and not by its task", advice=_STOPPED)
    if message.startswith(_SETUP_FAILED):
        _, *errors = _INSTALLER.split(message)
        reason = " ".join(errors[-1].split()) if errors else "".join(find_exceptions(message)[-1:])
        return classify(f"{_SETUP_FAILED}: {reason}" if reason else message.strip())
    exited = _EXIT_CODE.match(message)
    if exited is None and message:
        # Ray's message explains a driver that Ray lost.
        return classify(" ".join(strip_prefixes(message).split()))
    code = int(exited[1]) if exited else 0
    if failure := signal_failure("the driver", code):
        return failure
    # Ray's message holds the end of the log, too.
    log = "\n".join(line for line in last_lines if not line.startswith(MARK)) or message
    if line := _NO_MODULE.search(log) or _NOT_FOUND.search(log):
        return classify(line[line.lastindex or 0].strip())
    driver = f"the driver ended with exit code {code} and" if exited else "the driver"
    return diagnose(log, "driver_log") or classify(f"{driver} wrote no error")
