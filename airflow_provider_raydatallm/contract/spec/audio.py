"""The recording of a row, which a model writes down: where it stands, how long it may be, and from where."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Seconds
from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.spec.images import ImageSpec
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources

_FIELDS = ("column", "language", "max_seconds", "max_bytes", "sources", "timeout")


@dataclass(frozen=True)
class MediaColumn:
    """The column with rows' files, and what may be read for it.

    :param argument: of the operator; errors name its leaves.
    :param noun: what a file is.
    :param timeout_s: for a site to send a file.
    """

    argument: str
    noun: str
    column: str
    max_bytes: int
    sources: tuple[str, ...]
    timeout_s: float


class AudioSpec(ImageSpec):
    #: Column with a recording, or a list of those that follow each other.
    audio_column: str | None = Field(default=None, min_length=1)
    #: By its code, such as "en". None: the model finds out.
    audio_language: str | None = Field(default=None, pattern="^[a-z]{2,3}$")
    #: Of a recording. Longer ones are not written down.
    audio_max_seconds: float = Field(default=1800, gt=0, le=4 * 3600)
    #: Of a recording's file. Larger ones are not read.
    audio_max_bytes: int = Field(default=200 << 20, ge=1)
    #: Folders and sites that rows may name (`media_sources`). Without any, a row holds its recording.
    audio_sources: tuple[str, ...] = ()
    #: Seconds that a site may take to send a recording.
    audio_timeout: Seconds = 60.0

    @field_validator("audio_sources")
    @classmethod
    def _check_audio_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        MediaSources(value, "audio")
        return value

    @model_validator(mode="after")
    def _check_audio(self) -> AudioSpec:
        if self.audio_column is None:
            for name in (f"audio_{leaf}" for leaf in _FIELDS):
                if getattr(self, name) != AudioSpec.model_fields[name].get_default():
                    raise ValueError(f"{label(name)} needs audio.column: the column with the recordings")
        return self

    @property
    def media(self) -> MediaColumn | None:
        if self.audio_column is not None:
            limits = (self.audio_max_bytes, self.audio_sources, self.audio_timeout)
            return MediaColumn("audio", "recording", self.audio_column, *limits)
        if self.image_column is not None:
            limits = (self.image_max_bytes, self.image_sources, self.image_timeout)
            return MediaColumn("images", "image", self.image_column, *limits)
        return None
