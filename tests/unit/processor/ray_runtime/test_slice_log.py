from __future__ import annotations

import logging

import pytest

from airflow_provider_raydatallm.contract.log.own_lines import parse_line
from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log

LOGGER = logging.getLogger("airflow_provider_raydatallm.processor.store.lease")


def test_messages_are_own_lines_with_level_and_slice(capsys: pytest.CaptureFixture[str]) -> None:
    start_log("2026-01-01")
    start_log()  # a process that works for the slice keeps its key
    LOGGER.warning("worker %d died:\nno memory", 2)
    LOGGER.info("again")
    LOGGER.debug("nobody reads this")
    printed = capsys.readouterr()
    assert printed.out == ""  # which is the report's
    lines = printed.err.splitlines()
    assert [parse_line(line) for line in lines] == [
        ("WARNING", "worker 2 died:"), ("WARNING", "    no memory"), ("INFO", "again"),
    ]  # fmt: skip
    assert all("[2026-01-01]" in line for line in lines)
