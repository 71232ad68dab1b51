"""The spec of a slice's job, as commands take it: a file, or what was shipped with a Ray job."""

from __future__ import annotations

import argparse
import importlib.resources
import json

from pydantic import ValidationError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.contract.spec_problems import describe_problems
from airflow_provider_raydatallm.processor.commands.command import Command, Commands, add_command

_EXPORT = "Export a task's with `airflow ray-llm spec DAG TASK DATE > spec.json`"


def add_spec_command(commands: Commands, name: str, run: Command, what: str) -> argparse.ArgumentParser:
    """Adds a command about the slice of a spec."""
    command = add_command(commands, name, run, what)
    command.add_argument(
        "spec", metavar="SPEC", help="JSON file of a slice's job: a path, a URL, or package:NAME"
    )
    command.add_argument("others", nargs="*", default=[], help=argparse.SUPPRESS)
    command.set_defaults(job=None)
    return command


def spec_of(args: argparse.Namespace) -> SliceJob:
    """Returns the job of a command's spec, which is read once.

    :raises SliceError: when there is no such spec, or it is not valid.
    """
    if args.others:
        given = " ".join([args.spec, *args.others])
        raise SliceError(
            f"`{args.command}` takes one argument, a spec, and {given} is given", kind="input", advice=_EXPORT
        )
    args.job = args.job or load_spec(args.spec)
    job: SliceJob = args.job
    return job


def is_spec(source: str) -> bool:
    """Whether an argument that names a table or a spec is a spec."""
    return source.endswith(".json") or source.startswith("package:")


def load_spec(source: str) -> SliceJob:
    """:raises SliceError: when there is no such spec, or it is not valid."""
    try:
        if source.startswith("package:"):
            package = source.removeprefix("package:")
            text = importlib.resources.files(package).joinpath("spec.json").read_text()
        else:
            from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

            fs, path = open_fs(source)
            text = fs.cat_file(path).decode("utf-8-sig")  # some editors begin a file with a mark
    except SliceError:
        raise
    except FileNotFoundError as e:  # a store's has no text but the path
        raise SliceError(
            f"cannot read the spec {source}: there is no such file", kind="input", advice=_EXPORT
        ) from e
    except IsADirectoryError as e:
        raise SliceError(f"{source} is a folder, and no spec", kind="input", advice=_EXPORT) from e
    except Exception as e:  # stores fail with errors of many types
        raise SliceError(f"cannot read the spec {source}: {e}", kind="input") from e
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise SliceError(
                f"the spec {source} is not valid: it is no JSON object",
                kind="input",
                row_texts=(repr(text[:40]),),
            )
        return SliceJob.model_validate(value)
    except (ValueError, RecursionError) as e:  # Python reads JSON of limited depth
        why = describe_problems(e) if isinstance(e, ValidationError) else e
        raise SliceError(f"the spec {source} is not valid: {why}", kind="input") from e
