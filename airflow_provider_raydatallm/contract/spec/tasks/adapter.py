"""LoRA adapters: one for all rows of a slice, or one for each row, named by a column.

The spec names where they lie. What they hold is read on the cluster, and decides answers too
(`processor.adapters`): an adapter that is replaced in place is another one.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from airflow_provider_raydatallm.contract.addresses import check_address
from airflow_provider_raydatallm.contract.base import FOLDER, Group
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf


class Adapter(Group):
    """LoRA adapters: folders with `adapter_config.json` and `adapter_model.safetensors`, in object storage or
    on every node. Each node copies them once. Instead of the dict, the folder of the one adapter of all
    rows."""

    short_leaf: ClassVar[str | None] = "path"
    short_text: ClassVar[str] = "the folder of one"

    path: str | None = leaf(
        None, affects=Affects.REQUEST, doc="the one adapter of all rows.", secret=True, address=True
    )
    paths: dict[str, str] = leaf(
        dict,
        affects=Affects.REQUEST,
        doc='several adapters, by name: `{"acme": "s3://models/acme", ...}`.',
        secret=True,
        address=True,
    )
    column: str | None = leaf(
        None,
        affects=Affects.REQUEST,
        doc="the column that holds a row's name among `paths`. A row with another name goes to quarantine.",
        of_row=True,
    )
    on_null: Literal["quarantine", "base"] = leaf(
        "quarantine",
        affects=Affects.REQUEST,
        doc="a row whose name is null, or empty: `quarantine`, or `base`: the model answers it without an "
        "adapter.",
    )
    base_model: str | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="what the adapters say they were trained on (`base_model_name_or_path`), where that is not "
        "`model_source`, such as for a quantized one.",
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str | None) -> str | None:
        return value if value is None else _check_folder(value)

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, value: dict[str, str]) -> dict[str, str]:
        for name, path in value.items():
            try:
                _check_folder(path)
            except ValueError as e:
                raise ValueError(f"adapter {name!r}: {e}") from None
        if "" in value:
            raise ValueError("an adapter has the name '', which counts as null: give it another name")
        return value

    @model_validator(mode="after")
    def _check(self) -> Adapter:
        if self.path is not None and self.paths:
            raise ValueError("adapter.path and adapter.paths exclude each other: give one or several")
        if bool(self.paths) != (self.column is not None):
            raise ValueError(
                "adapter.paths and adapter.column need each other: the folders of the adapters by their "
                "names, and the column that holds a row's name"
            )
        if self.on_null != "quarantine" and self.column is None:
            raise ValueError("adapter.on_null is for adapters that rows name: it needs adapter.column")
        if self.base_model is not None and not self:
            raise ValueError("adapter.base_model needs adapter.path, or adapter.paths")
        return self

    def __bool__(self) -> bool:
        return self.path is not None or bool(self.paths)


def _check_folder(path: str) -> str:
    if not FOLDER.match(path):
        raise ValueError(
            "not a folder that every node can read: give an address such as 's3://bucket/adapter', or an "
            "absolute path that exists on every node"
        )
    return check_address(path)
