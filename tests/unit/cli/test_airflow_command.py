"""`airflow ray-llm`: its stdout is what a program reads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, os, sys
from unittest import mock
from airflow_provider_raydatallm.cli import airflow_command, main

def command(arguments, prog):
    logging.warning("a line of Airflow's log")
    os.write(1, b"of a library")
    print("[]")
    return 0

logging.basicConfig(stream=sys.stdout)
with mock.patch.object(main, "main", command):
    airflow_command._run(mock.Mock(arguments=["slices"]))
"""


@pytest.mark.slow
def test_log_of_airflow_goes_to_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "a line of Airflow's log" in done.stderr
    assert "of a library" in done.stderr
