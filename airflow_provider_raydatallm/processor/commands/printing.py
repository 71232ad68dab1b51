"""What commands print. It quotes rows, models and whoever can write to the storage: none of them ends a line
of text or commands the terminal."""

from __future__ import annotations

import argparse
import base64
import json
import math
import sys
from typing import Any, TextIO

from airflow_provider_raydatallm.contract.log.marked_lines import encode_line
from airflow_provider_raydatallm.contract.log.plain_text import plain_text
from airflow_provider_raydatallm.contract.log.progress_text import result_lines
from airflow_provider_raydatallm.contract.result.failure import Failure
from airflow_provider_raydatallm.contract.result.report import Report

_CELL_CHARACTERS = 200


def say(*lines: str, file: TextIO | None = None) -> None:
    """Prints each text as one line."""
    for line in lines:
        print(plain_text(line), file=file)
    print(end="", file=file, flush=True)


def complain(*lines: str) -> None:
    say(*lines, file=sys.stderr)


def print_json(value: Any, *, indent: int | None = None) -> None:
    print(json.dumps(_as_json_values(value), default=str, indent=indent), flush=True)


def print_report(report: Report | None, args: argparse.Namespace) -> None:
    print_outcome(None if report is None else report.model_dump(mode="json"), args)
    if report is not None and args.nonce is None and not args.json:
        say(*result_lines(report))


def print_outcome(value: Any, args: argparse.Namespace) -> None:
    """Prints JSON for who reads the job's log, or asked for JSON."""
    if args.nonce is not None:
        print(encode_line("report", args.nonce, value), flush=True)
    elif args.json:
        print_json(value, indent=2)


def failure_lines(failure: Failure) -> list[str]:
    """The whole record, for people who may see rows."""
    where, log_of = str(failure.place), f" of {failure.log_of}" if failure.log_of else ""
    return [
        failure.headline,
        *(f"Advice: {advice}" for advice in failure.advice),
        *([f"Where: {where}"] if where else ()),
        *([f"Rows: {failure.count_words}"] if failure.count_words else ()),
        *(failure.cause.split("\n") if failure.cause not in failure.sentence else ()),
        *failure.frames,
        *([f"Last lines of the log{log_of}:", *failure.log] if failure.log else ()),
    ]  # fmt: skip


def number_text(value: Any) -> str:
    """Formats a number of a stored document. Anything else is shown as it is."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def cell_text(value: Any) -> str:
    """One line, cut."""
    text = plain_text(str(value))
    cut = f"{text[:_CELL_CHARACTERS]}... ({len(text):,} characters)"
    return text if len(text) <= _CELL_CHARACTERS else cut


def _as_json_values(value: Any) -> Any:
    """With texts in place of what JSON lacks: some numbers, and bytes (Base64)."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _as_json_values(of_name) for name, of_name in value.items()}
    return [_as_json_values(item) for item in value] if isinstance(value, list | tuple) else value
