"""Files, versions and folders of the table."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from airflow_provider_raydatallm.contract.addresses import check_address
from airflow_provider_raydatallm.contract.base import FOLDER, Group, Several
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf

#: What is known of an answered row beside its answer.
Detail = Literal[
    "finish_reason", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "seconds",
    "attempts", "repaired", "truncated", "degenerate", "shortened", "deduplicated", "cached",
]  # fmt: skip


class Publish(Group):
    """How the slice is published."""

    details: Several[Detail] = leaf(
        (),
        affects=Affects.PUBLISHED,
        doc="columns of each row beside its answer, named `<output_column>_<detail>`: `finish_reason`, "
        "`input_tokens`, `output_tokens`, `cached_tokens` (found in the engine's prefix cache), "
        "`reasoning_tokens`, `seconds` (in the engine), `attempts`, and whether the row was `repaired` "
        "(answered after an invalid answer), `truncated`, `degenerate` (it repeated itself), `shortened` "
        "(its prompt was), `deduplicated` (has the answer to an identical request) or `cached` (answered "
        "from `engine.cache`): both take 0 tokens. Tokens and seconds are those of the attempt that "
        "answered. Null is what is not known. The files' metadata then has model and fingerprint.",
    )
    max_file_bytes: int = leaf(
        1 << 30,
        affects=Affects.NOTHING,
        doc="approximate size above which it is published as several files. Default: 1 GiB.",
        ge=1 << 20,
        le=4 << 30,  # object stores copy files of up to 5 GB in one request, which publishing needs
    )
    file_per_input: bool = leaf(
        False, affects=Affects.NOTHING, doc="publish one file per input file instead."
    )
    keep_versions: int = leaf(
        1,
        affects=Affects.NOTHING,
        doc="how many replaced versions stay readable and can be restored. Default: 1.",
        ge=0,
    )
    on_schema_change: Literal["fail", "accept"] = leaf(
        "fail",
        affects=Affects.NOTHING,
        doc="when the slice's columns are not those of the table's other slices: `fail`, before a row is "
        "paid, or `accept` them.",
    )
    metadata_path: str | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="folder of the table's plans, checkpoints, commits and reports. Default: `<table>.ray_llm/`, "
        "beside the table.",
        address=True,
    )
    quarantine_path: str | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="table of the rows that failed. Default: `<table>.quarantine/`.",
        address=True,
    )

    @field_validator("metadata_path", "quarantine_path")
    @classmethod
    def _check_folder_beside_table(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return value
        if not FOLDER.match(value) or "{slice}" in value:
            raise ValueError(
                f"publish.{info.field_name} is {value!r}: give the folder of the whole table, as an address "
                "or an absolute path, without {slice}"
            )
        return check_address(value)
