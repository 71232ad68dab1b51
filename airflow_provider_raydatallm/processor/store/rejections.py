"""What people rejected: a document in the checkpoint for each staged version, with the rows of it that are
asked again, if any. Neither Arrow nor Ray is imported.

Once it is there, the version is rejected: whoever finds it discards the version, and nobody commits it. It
says up to which epoch what runs wrote of its rows does not count, so that it never concerns a later answer,
and may stay as long as the checkpoint does. What is staged of these rows names the decisions that it honours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import CorruptFileError, Store
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    LAST_NUMBER,
    PLAN_BYTES,
    REJECTED,
    rejection_of_staged,
    staged_of_rejection,
)
from airflow_provider_raydatallm.processor.store.staged_versions import StagedVersion

_FORMAT = 1
_UnitId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]  # `columns.MAX_UNIT_ROWS`, which comes with Arrow


class Rejection(BaseModel):
    """
    condition: as the person wrote it; "" where no row is asked again.
    rows: of the rows that are, by unit: start and stop of each range, one after the other.
    input_hash: of what the version was planned over; "" in documents of earlier builds.
    """

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    format: Annotated[int, Field(ge=_FORMAT, le=_FORMAT)] = _FORMAT
    condition: str = ""
    last_epoch: Annotated[int, Field(ge=0, le=LAST_NUMBER)]
    rows: dict[_UnitId, list[_Offset]] = {}
    input_hash: str = ""

    def decision_on(self, name: str) -> str:
        """Identifies it, among others on the same staged version too."""
        said = self.model_dump_json(exclude={"input_hash"})
        return f"{name}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def reject(
    metadata: Store, staged: StagedVersion, condition: str = "", rows: Mapping[str, Sequence[int]] = {}
) -> Rejection | None:
    """Rejects a staged version. Returns what somebody decided before, if that was something else: it counts.

    :param condition, rows: see `Rejection`.
    """
    rejection = Rejection(
        condition=condition,
        last_epoch=staged.version.epoch,
        rows={unit: list(offsets) for unit, offsets in rows.items()},
        input_hash=staged.version.input_hash,
    )
    metadata.create_document(REJECTED, {"first": staged.name})
    folder, _, name = _document_of(staged).rpartition("/")
    if metadata.create_document(f"{folder}/{name}", rejection.model_dump()):
        return None
    earlier = dict(read_rejections(metadata, folder, [name])).get(staged.name)
    return earlier if earlier != rejection else None


def forget_rejection(metadata: Store, staged: StagedVersion) -> None:
    metadata.remove_file(_document_of(staged))
    metadata.remove_empty(_document_of(staged).rpartition("/")[0])


def is_rejected(metadata: Store, staged: StagedVersion) -> bool:
    """Whether somebody rejected it, and so it is to be discarded: as this version, or as another one with the
    same answers where rows of these are asked again. One with other columns beside them, say, or one over
    more files, which was staged before anybody heard of the decision.

    :raises SliceError: when a decision cannot be read.
    """
    honoured = staged.version.body.get("honoured")

    def has_answers_of(name: str, rejection: Rejection) -> bool:
        if honoured is None:  # of an earlier build
            return rejection.last_epoch >= staged.version.epoch
        return rejection.decision_on(name) not in honoured

    return any(
        name == staged.name or (bool(rejection.rows) and has_answers_of(name, rejection))
        for name, rejection in read_rejections(metadata, f"{CHECKPOINT}/{staged.version.question}")
    )


def has_rejections(metadata: Store) -> bool:
    """Whether people ever rejected answers of the slice, to whichever question: others may have the same
    request now, of an input that was written anew, say."""
    return REJECTED in metadata.names()


def read_rejections(
    metadata: Store, folder: str, names: Sequence[str] | None = None
) -> Iterator[tuple[str, Rejection]]:
    """Yields those in a checkpoint, with the names of the staged versions.

    :param names: of the files in its folder, if they are known.
    :raises SliceError: when one cannot be read.
    """
    for name in metadata.names(folder) if names is None else names:
        if (staged := staged_of_rejection(name)) is None:
            continue
        path = f"{folder}/{name}"
        try:
            if (body := metadata.read_document(path, PLAN_BYTES)) is None:
                continue  # somebody decided anew
            rejection = Rejection.model_validate(body)
            for offsets in rejection.rows.values():
                _check_ranges(offsets)
        except (CorruptFileError, ValidationError, ValueError) as e:
            raise SliceError(
                f"{metadata.path(path)} says what a person rejected, and is damaged, or another version of "
                "the provider wrote it",
                kind="input",
                advice="Remove it to keep the answers of all rows",
            ) from e
        yield staged, rejection


def find_rejection(metadata: Store, name: str) -> Rejection | None:
    """Returns what somebody decided of the staged version of that name, which may be gone; None where nobody
    rejected it, or its rows are gone, too.

    :raises SliceError: when it cannot be read.
    """
    for question in metadata.names(CHECKPOINT):
        found = read_rejections(metadata, f"{CHECKPOINT}/{question}", [rejection_of_staged(name)])
        for _, rejection in found:
            return rejection
    return None


def _check_ranges(offsets: Sequence[int]) -> None:
    if any(start >= stop for start, stop in zip(offsets[::2], offsets[1::2], strict=True)):
        raise ValueError("it has a range without rows")


def _document_of(staged: StagedVersion) -> str:
    return f"{CHECKPOINT}/{staged.version.question}/{rejection_of_staged(staged.name)}"
