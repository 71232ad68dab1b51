"""LoRA adapters: one for all rows of a slice, or one for each row, named by a column.

The spec names where they lie. What they hold is read on the cluster, and decides answers too
(`processor.adapters`): an adapter that is replaced in place is another one.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raydatallm.contract.addresses import check_address
from airflow_provider_raydatallm.contract.base import FOLDER
from airflow_provider_raydatallm.contract.spec.endpoint import EndpointSpec


class AdapterSpec(EndpointSpec):
    #: Folder of the one adapter.
    adapter_path: str | None = None
    #: Folders of several, by the names that the column holds.
    adapter_paths: dict[str, str] = Field(default_factory=dict)
    adapter_column: str | None = None
    #: Where the column is null: whether the row fails, or the model answers it without an adapter.
    adapter_on_null: Literal["quarantine", "base"] = "quarantine"
    #: What the adapters say they were trained on, where that is not `model_source`.
    adapter_base_model: str | None = None

    @field_validator("adapter_path")
    @classmethod
    def _check_adapter_path(cls, value: str | None) -> str | None:
        return value if value is None else _check_folder(value)

    @field_validator("adapter_paths")
    @classmethod
    def _check_adapter_paths(cls, value: dict[str, str]) -> dict[str, str]:
        for name, path in value.items():
            try:
                _check_folder(path)
            except ValueError as e:
                raise ValueError(f"adapter {name!r}: {e}") from None
        if "" in value:
            raise ValueError("an adapter has the name '', which counts as null: give it another name")
        return value

    @model_validator(mode="after")
    def _check_adapters(self) -> AdapterSpec:
        if self.adapter_path is not None and self.adapter_paths:
            raise ValueError("adapter.path and adapter.paths exclude each other: give one or several")
        if bool(self.adapter_paths) != (self.adapter_column is not None):
            raise ValueError(
                "adapter.paths and adapter.column need each other: the folders of the adapters by their "
                "names, and the column that holds a row's name"
            )
        if self.adapter_on_null != "quarantine" and self.adapter_column is None:
            raise ValueError("adapter.on_null is for adapters that rows name: it needs adapter.column")
        if not self.has_adapters:
            if self.adapter_base_model is not None:
                raise ValueError("adapter.base_model needs adapter.path, or adapter.paths")
            return self
        if self.resolved_engine != "vllm":
            raise ValueError(
                f"adapters are for engine 'vllm', and this slice's is {self.resolved_engine!r}: leave "
                "adapter out, or what selects that engine"
            )
        if self.engine_kwargs.get("enable_lora") is False:
            raise ValueError("engine.kwargs['enable_lora'] is False, and adapter needs it: leave it out")
        return self

    @property
    def has_adapters(self) -> bool:
        return self.adapter_path is not None or bool(self.adapter_paths)

    @property
    def adapters_as_written(self) -> Any:
        """What decides, beside their content, which adapter answers a row."""
        return self.adapter_path or [self.adapter_column, self.adapter_paths, self.adapter_on_null]

    @property
    def _own_engine_reason(self) -> str | None:
        if self.has_adapters:
            return "adapters are loaded by an engine of the slice's own"
        return super()._own_engine_reason


def _check_folder(path: str) -> str:
    if not FOLDER.match(path):
        raise ValueError(
            "not a folder that every node can read: give an address such as 's3://bucket/adapter', or an "
            "absolute path that exists on every node"
        )
    return check_address(path)
