"""What a commit says, checked before it is believed.

A commit decides which files a version has, never where they lie: names are those that the provider gives, and
the folders are the table's own (`SliceFolders`). Whoever can write a commit can forge a version of
its slice, and nothing beyond it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_raydatallm.processor.store.file_names import (
    LAST_NUMBER,
    FileKind,
    number_of_file,
    number_of_plan,
    number_of_staged,
)

#: Of rows and bytes.
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
#: Of a folder, which no filesystem has with a NUL.
_Address = Annotated[str, Field(pattern=r"^[^\x00]*$")]
_Number = Annotated[int, Field(ge=0, le=LAST_NUMBER)]


class _Checked(BaseModel):
    #: Newer providers may say more.
    model_config = ConfigDict(extra="ignore", strict=True, hide_input_in_errors=True)


class _File(_Checked):
    model_config = ConfigDict(extra="forbid")

    name: str
    rows: _Count
    bytes: _Count
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    input: str | None = None


class _Input(_Checked):
    hash: str
    files: _Count
    rows: _Count


class _Report(_Checked):
    outcome: str
    counts: dict[str, int | None]
    tokens: dict[str, int | None]


class _Body(_Checked):
    number: _Number
    staged: str
    plan: str
    keep: Annotated[int, Field(ge=0, le=2**31 - 1)]
    epoch: _Number
    files: list[_File]
    quarantine: list[_File]
    fingerprint: str
    answers: str
    question: str
    input: _Input
    report: _Report
    takes_over: _Number | None = None
    honoured: list[str] | None = None
    table: _Address | None = None
    quarantine_folder: _Address | None = None
    slice_instant: str | None = None


def check_body(body: dict[str, Any], number: int) -> None:
    """
    :param number: in the commit's name.
    :raises ValueError: when no provider wrote that.
    """
    try:
        said = _Body.model_validate(body)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False, include_context=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    groups: tuple[tuple[FileKind, list[_File]], ...] = (("part", said.files), ("quarantine", said.quarantine))
    files = [(file.name, kind) for kind, group in groups for file in group]
    is_own = (
        number_of_staged(said.staged) == said.number == number
        and "/" not in said.staged
        and number_of_plan(said.plan) is not None
        and all(number_of_file(name, kind) == number for name, kind in files)
        and len(set(files)) == len(files)
    )
    if not is_own:
        raise ValueError("it names files that no version has")
