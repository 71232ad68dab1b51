"""`python -m airflow_provider_raydatallm.processor.job COMMAND ...`: a command of the processor as a Ray job.

A job's environment holds lent credentials, and its output is a log that others read and that Airflow copies.
Only the job itself knows them all, so it redacts what it prints: its own lines, tracebacks, and the lines of
its workers, which Ray prints here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO, cast

from airflow_provider_raydatallm.contract.log.marked_lines import redact_line
from airflow_provider_raydatallm.contract.log.redaction import Redactor, environment_secrets
from airflow_provider_raydatallm.contract.log.secret_shapes import MASK, KeyLines
from airflow_provider_raydatallm.processor.ray_runtime.bytecode import keep_bytecode


class RedactedStream:
    """Passes text on line by line, redacted; a part of a line when it is flushed."""

    def __init__(self, stream: TextIO, redactor: Redactor) -> None:
        self._stream = stream
        self._redactor = redactor
        self._key_lines = KeyLines()
        self._rest = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._stream.write(self._redacted(line) + "\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._lock:
            self._stream.write(self._redacted(self._rest))
            self._rest = ""
            self._stream.flush()

    def _redacted(self, line: str) -> str:
        return MASK if self._key_lines.is_of_key(line) else redact_line(line, self._redactor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # fileno, encoding, isatty, ...


def _own_secrets() -> set[str]:
    """Returns those of the environment, and the cluster's token, which Ray may read from a file."""
    secrets = environment_secrets(os.environ)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
        secrets.add(file.read_text("utf-8").strip())
    return secrets


def main() -> int:
    redactor = Redactor(_own_secrets())
    sys.stdout = cast("TextIO", RedactedStream(sys.stdout, redactor))
    sys.stderr = cast("TextIO", RedactedStream(sys.stderr, redactor))
    keep_bytecode()
    # Only now: what loggers of Ray write to is chosen when it is imported.
    from airflow_provider_raydatallm.processor import __main__ as processor

    return processor.main()


if __name__ == "__main__":
    sys.exit(main())
