"""The images of a row, beside its prompt: where they stand, how large a model sees them, and from where."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Contract, Seconds
from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources


class ImageSpec(Contract):
    #: Column with an image, or a list of them.
    image_column: str | None = Field(default=None, min_length=1)
    #: Larger images are made smaller, to this.
    image_max_pixels: int = Field(default=1 << 20, ge=28 * 28)
    #: Of an image's file. Larger ones are not read.
    image_max_bytes: int = Field(default=20 << 20, ge=1)
    #: Folders and sites that rows may name (`media_sources`), also in the messages of an engine that takes
    #: their images from there. Without any, a row holds its images, and messages hold text.
    image_sources: tuple[str, ...] = ()
    #: Seconds that a site may take to send an image.
    image_timeout: Seconds = 20.0

    @field_validator("image_sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        MediaSources(value)
        return value

    @model_validator(mode="after")
    def _check_images(self) -> ImageSpec:
        if self.image_column is not None and "data:" in self.image_sources:
            raise ValueError(
                "images.sources has 'data:', which is for messages: a column holds images as bytes"
            )
        if self.image_column is None:
            for name, field in ImageSpec.model_fields.items():
                if name != "image_sources" and getattr(self, name) != field.get_default():
                    raise ValueError(f"{label(name)} needs images.column: the column with the images")
        return self
