"""`task="transcribe"`: what is said in a recording."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Group, Seconds, Texts
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, default_of, leaf
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.contract.spec.tasks.base import MediaColumn, Task


class Audio(Group):
    """Recordings that `task="transcribe"` writes down; a column's name alone says the same as `column`.

    They are WAV, FLAC, MP3, AAC, AMR, AIFF, Ogg, MP4 (M4A), Matroska or WebM files; of several channels the
    mean counts. A row with a file that is damaged, too long or not there goes to quarantine.
    """

    short_leaf: ClassVar[str | None] = "column"
    short_text: ClassVar[str] = "the name of a column"

    column: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="the column: bytes, addresses, structs of `bytes` and `path`, or lists of these, which follow "
        "each other.",
        min_length=1,
        of_row=True,
        stand_in="x",
    )
    language: str | None = leaf(
        None,
        affects=Affects.ANSWERS,
        doc="what is spoken, by its code, such as `en`. Default: the model finds out for each row.",
        pattern="^[a-z]{2,3}$",
    )
    max_seconds: float = leaf(
        1800.0, affects=Affects.NOTHING, doc="of a recording. Default: 1800.", gt=0, le=4 * 3600
    )
    max_bytes: int = leaf(
        200 << 20,
        affects=Affects.NOTHING,
        doc="of a recording's file; larger ones are not read. Default: 200 MiB.",
        ge=1,
    )
    sources: Texts = leaf(
        (), affects=Affects.NOTHING, doc="where addresses may lead, as for images (`Images`)."
    )
    timeout: Seconds = leaf(
        60.0,
        affects=Affects.NOTHING,
        doc="how long a site may take to send a recording. Default: 60 seconds.",
    )

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        MediaSources(value, "audio")
        return value

    @model_validator(mode="after")
    def _check(self) -> Audio:
        if self.column is None:
            for name, field in type(self).model_fields.items():
                if getattr(self, name) != default_of(field):
                    raise ValueError(f"audio.{name} needs audio.column: the column with the recordings")
        return self


class Transcribe(Task):
    """What is said in a recording."""

    needs_prompt: ClassVar[bool] = False

    kind: Literal["transcribe"] = leaf(affects=Affects.ANSWERS)
    audio: Audio = Audio()

    @model_validator(mode="after")
    def _check_audio(self) -> Transcribe:
        if self.audio.column is None:
            raise ValueError("task='transcribe' writes down recordings: give audio, the column with them")
        return self

    @property
    def media(self) -> MediaColumn | None:
        audio = self.audio
        assert audio.column is not None
        return MediaColumn("audio", "recording", audio.column, audio.max_bytes, audio.sources, audio.timeout)

    def given(self, job: Spec) -> set[str]:
        return {"audio"}
