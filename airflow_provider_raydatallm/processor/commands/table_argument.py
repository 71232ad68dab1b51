"""`OUTPUT [SLICE]`: a table, or a slice of it, as commands take it; or a spec in its place.

One rule tells them apart: a path that ends in `.json`, and `package:NAME`, is a spec.
"""

from __future__ import annotations

import argparse

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.slice_paths import SliceAddress, slice_template
from airflow_provider_raydatallm.processor.commands.command import Command, Commands, add_command
from airflow_provider_raydatallm.processor.commands.spec_file import is_spec, load_spec


def add_table_command(
    commands: Commands,
    name: str,
    run: Command,
    what: str,
    *,
    alias: str | None = None,
    takes_several: bool = False,
) -> argparse.ArgumentParser:
    """Adds a command about a table.

    :param takes_several: whether it may be about several. Their arguments are in `tables` then.
    """

    def settled(args: argparse.Namespace) -> int:
        if takes_several:
            args.tables = [argparse.Namespace(**{**vars(args), "output": output}) for output in args.output]
        for table in args.tables if takes_several else [args]:
            _settle(table)
        return run(args)

    command = add_command(commands, name, settled, what, alias=alias)
    command.add_argument(
        "output",
        metavar="OUTPUT",
        nargs="+" if takes_several else None,
        help="the operator's output_path: the table's folder, or with {slice}; or a spec (a path that ends "
        "in .json, or package:NAME), which names its table and slice",
    )
    command.add_argument("--metadata-path", help="the operator's publish.metadata_path, where it was set")
    return command


def add_slice_command(
    commands: Commands, name: str, run: Command, what: str, *, alias: str | None = None
) -> argparse.ArgumentParser:
    """Adds a command about one slice of a table."""
    command = add_table_command(commands, name, run, what, alias=alias)
    command.add_argument(
        "slice", metavar="SLICE", nargs="?", help="its key, such as 2026-01-31; left out after a spec"
    )
    return command


def slice_address(args: argparse.Namespace, key: str | None = None) -> SliceAddress:
    """
    :param key: of the slice; by default the command's.
    """
    return SliceAddress.typed(args.output, args.slice if key is None else key, args.metadata_path)


def _settle(args: argparse.Namespace) -> None:
    """Puts what a spec names in its place.

    :raises SliceError: when no slice is named, or twice, or the table can be none.
    """
    if is_spec(args.output):
        _take_spec(args)
    elif getattr(args, "slice", "") is None:
        raise SliceError(
            f"`{args.command}` is about one slice, and none of {args.output} is named",
            kind="input",
            advice="Give its key after OUTPUT, such as 2026-01-31: `slices OUTPUT` lists them",
        )
    try:
        slice_template(args.output)
    except ValueError as e:
        raise SliceError(str(e), kind="input") from e


def _take_spec(args: argparse.Namespace) -> None:
    given = getattr(args, "slice", None)
    if given is not None and getattr(args, "staged", "") is None:
        args.staged, given = given, None  # `commit spec.json NAME`
    if given is not None or args.metadata_path is not None:
        raise SliceError(
            f"{args.output} is a spec, which names its own slice and metadata, and "
            f"{given or '--metadata-path'} is given, too",
            kind="input",
            advice="Give OUTPUT and SLICE, or the spec alone",
        )
    job = load_spec(args.output)
    args.output = slice_template(job.output_path, job.trial_name)
    args.metadata_path = None if job.trial_name is not None else job.publish.metadata_path
    if hasattr(args, "slice"):
        args.slice = job.slice_key
