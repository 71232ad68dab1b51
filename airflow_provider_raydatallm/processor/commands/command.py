"""A command: `--json`, and one place that reports how it failed, whichever command it was."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from airflow_provider_raydatallm.contract.log.marked_lines import MAX_BYTES, encode_line
from airflow_provider_raydatallm.contract.log.plain_text import plain_lines
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.processor.commands.printing import complain, print_json
from airflow_provider_raydatallm.processor.root_error import root_error

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class IncompleteError(SliceError):
    """A command failed, and a part of its result is known: `--json` prints it with the failure."""

    def __init__(self, failure: Failure, result: Mapping[str, Any]) -> None:
        super().__init__(failure.sentence, kind=failure.kind)
        self._set(failure)
        self.result = result


def add_command(
    commands: Commands, name: str, run: Command, what: str, *, alias: str | None = None
) -> argparse.ArgumentParser:
    """Adds a command; like every other it has `--json`.

    :param alias: another name for it.
    """
    command = commands.add_parser(name, help=what, description=what, aliases=[alias] if alias else [])
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run, nonce=None)
    return command


def add_nonce(command: argparse.ArgumentParser) -> None:
    """For commands that run as a Ray job, too."""
    command.add_argument("--nonce", help="print everything in marked lines that carry this text")


def days(text: str) -> float:
    """The type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return number


def run_command(command: Command, args: argparse.Namespace) -> int:
    """Runs a command. Reports its error: the record on stdout, in JSON or a marked line, where results are
    printed so; the sentence on stderr."""
    from airflow_provider_raydatallm.processor.ray_runtime.slice_log import start_log

    start_log()
    try:
        return command(args)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # the user's code may call `sys.exit()`
        if isinstance(e, BrokenPipeError) and args.nonce is None:  # a person's `| head`
            raise
        return _report_error(e, args)


def _report_error(error: BaseException, args: argparse.Namespace) -> int:
    from airflow_provider_raydatallm.processor.ray_runtime.driver import process_log

    failure = root_error(error, process_log)
    if args.nonce is not None:  # first: what follows, which may quote a row, no task's log shows
        print(encode_line("error", args.nonce, failure.to_json(MAX_BYTES)), flush=True)
    if getattr(error, "failure", None) is None:
        complain(*"".join(traceback.format_exception(error)).rstrip().split("\n"))
    if args.json and args.nonce is None:
        print_json({**getattr(error, "result", {}), "failure": failure.to_json()})
    log = failure.log if args.nonce is None else ()  # a job's log has these lines
    complain(*plain_lines("\n".join([f"error: {failure.message}", *log])))
    return 1
