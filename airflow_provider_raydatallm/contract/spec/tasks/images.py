"""The images of a row, beside its prompt: where they stand, how large a model sees them, and from where."""

from __future__ import annotations

from typing import ClassVar

from pydantic import field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Group, Seconds, Texts
from airflow_provider_raydatallm.contract.spec.field import Affects, default_of, leaf
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources


class Images(Group):
    """Images that the model sees before the prompt; a column's name alone says the same as `column`.

    They are JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF files. Of an animation the first frame counts, and what
    is see-through shows white. A row with a file that is damaged, too large or not there goes to quarantine.
    """

    short_leaf: ClassVar[str | None] = "column"
    short_text: ClassVar[str] = "the name of a column"

    column: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="the column: bytes, addresses, structs of `bytes` and `path`, or lists of these.",
        min_length=1,
        of_row=True,
        stand_in="x",
    )
    max_pixels: int = leaf(
        1 << 20,
        affects=Affects.ANSWERS,
        doc="of an image; larger ones are made smaller, to this. Default: 1,048,576.",
        ge=28 * 28,
    )
    max_bytes: int = leaf(
        20 << 20,
        affects=Affects.NOTHING,
        doc="of an image's file; larger ones are not read. Default: 20 MiB.",
        ge=1,
    )
    sources: Texts = leaf(
        (),
        affects=Affects.NOTHING,
        doc="where addresses may lead, without which none is opened: folders, such as `s3://lake/photos/` "
        "or `/mnt/photos`; sites, such as `https://cdn.example.com`; and addresses of machines "
        "(`10.1.2.3`, `10.1.0.0/16`) that are not public, where a site has one. Without `column`: where "
        "images in messages may lie, for any engine but `vllm`; `data:` for those that a message holds.",
    )
    timeout: Seconds = leaf(
        20.0,
        affects=Affects.NOTHING,
        doc="how long a site may take to send an image. Default: 20 seconds.",
    )

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        MediaSources(value)
        return value

    @model_validator(mode="after")
    def _check(self) -> Images:
        if self.column is not None and "data:" in self.sources:
            raise ValueError(
                "images.sources has 'data:', which is for messages: a column holds images as bytes"
            )
        if self.column is None:
            for name, field in type(self).model_fields.items():
                if name != "sources" and getattr(self, name) != default_of(field):
                    raise ValueError(f"images.{name} needs images.column: the column with the images")
        return self
