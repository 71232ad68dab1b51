"""Makes what the Ray side logs into lines for people (`contract.log.own_lines`), on stderr."""

from __future__ import annotations

import logging
import sys

from airflow_provider_raydatallm.contract.log.own_lines import format_lines

_LOGGER = logging.getLogger("airflow_provider_raydatallm.processor")


class _OwnLines(logging.Handler):
    slice_key = "-"

    def emit(self, record: logging.LogRecord) -> None:
        lines = format_lines(record.levelname, self.slice_key, record.getMessage(), record.created)
        # Standard output is the report's.
        print(lines, file=sys.stderr, flush=True)


_HANDLER = _OwnLines(logging.INFO)


def start_log(slice_key: str | None = None) -> None:
    """Shows what this process logs, from now on with the key of the slice that it works for, if any."""
    if slice_key is not None:
        _HANDLER.slice_key = " ".join(slice_key.split())
    if _HANDLER not in _LOGGER.handlers:
        _LOGGER.addHandler(_HANDLER)
        _LOGGER.setLevel(logging.INFO)
