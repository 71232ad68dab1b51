"""`airflow ray-llm`: its stdout is what a program reads."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from airflow_provider_raydatallm.cli import airflow_command

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


@pytest.mark.parametrize("words", [["ray-llm", "--help"], ["ray-llm", "-h"]])
def test_help_of_airflow_s_command_lists_the_commands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow's own parser answers it, before the command is called."""
    parser = argparse.ArgumentParser(prog="airflow")
    for command in airflow_command.get_cli_commands():
        own = parser.add_subparsers().add_parser(command.name)
        for argument in command.args:
            argument.add_to_parser(own)
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(words)
    text = capsys.readouterr().out
    assert text.startswith("usage: airflow ray-llm [-h] COMMAND")
    listed = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert {"slices", "show", "run", "spec", "gc", "engines"} <= listed
