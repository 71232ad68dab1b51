"""An engine outside the cluster: an HTTP endpoint with OpenAI's API (`engine.kind` "http").

Its key is in none of the fields: the job gets it as `KEY_VARIABLE`, from the connection that the operator
names.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Seconds
from airflow_provider_raydatallm.contract.groups import label
from airflow_provider_raydatallm.contract.spec.engine import EngineSpec

#: The environment variable of the job that has the endpoint's key.
KEY_VARIABLE = "RAY_LLM_ENDPOINT_API_KEY"
#: Fields that say something about an endpoint only.
ENDPOINT_FIELDS = (
    "endpoint_url", "allow_plain_http", "requests_in_flight", "requests_per_minute", "tokens_per_minute",
    "token_budget", "request_timeout",
)  # fmt: skip
#: Paths that follow the base address.
_APIS = ("/chat/completions", "/completions", "/embeddings")
#: Fields that an endpoint cannot follow: it has its own engine, tokenizer and machines.
_NOT_OF_AN_ENDPOINT = (
    "engine_kwargs", "processor_kwargs", "accelerator_type", "concurrency", "batch_size",
    "max_concurrent_batches", "on_too_long", "regex", "grammar",
)  # fmt: skip


def clean_key(text: str) -> str:
    """Returns a key as a header carries it: without the line break with which files of secrets end.

    :raises ValueError: for a character that no header can carry; the message does not quote the key.
    """
    key = text.strip()
    for place, character in enumerate(key, start=1):
        if not " " <= character <= "~":
            raise ValueError(f"its character {place} is U+{ord(character):04X}, which no header can carry")
    return key


class EndpointSpec(EngineSpec):
    #: Base address, such as https://host/v1.
    endpoint_url: str | None = None
    #: Whether the key and the rows may go to another machine unencrypted.
    allow_plain_http: bool = False
    requests_in_flight: int = Field(default=100, ge=1, le=10_000)
    requests_per_minute: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Of prompts and answers together, as are those of `token_budget`, which a run may spend.
    tokens_per_minute: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    token_budget: int | None = Field(default=None, ge=1)
    request_timeout: Seconds = 600.0

    @field_validator("endpoint_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("give the base address of the endpoint, such as 'https://host/v1'")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(
                "the address has a user, a query or a fragment, which may hold a secret: give the base "
                "address only, such as 'https://host/v1', and its key by model_conn_id"
            )
        if api := next(filter(parts.path.rstrip("/").endswith, _APIS), None):
            raise ValueError(f"give the base address, without {api!r}, such as 'https://host/v1'")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _check_endpoint(self) -> EndpointSpec:
        if self.engine != "http":
            for field in self._changed(ENDPOINT_FIELDS):
                raise ValueError(
                    f"{label(field)} is for engine.kind 'http', and this slice's engine is {self.engine!r}: "
                    "leave it out, or set engine.kind"
                )
            return self
        if self.endpoint_url is None:
            raise ValueError(
                "engine.kind 'http' needs engine.url: the base address of an endpoint with OpenAI's API, "
                "such as 'https://host/v1'"
            )
        for field in self._changed(_NOT_OF_AN_ENDPOINT):
            raise ValueError(
                f"{label(field)} is {getattr(self, field)!r}, and an endpoint (engine.kind 'http') cannot "
                f"follow it: {_INSTEAD.get(field, 'leave it out')}"
            )
        if not (self.allow_plain_http or self.endpoint_url.startswith("https:") or self.is_local_endpoint):
            raise ValueError(
                f"engine.url begins with http://, and {self.endpoint_host!r} is another machine: key and "
                "rows would travel unencrypted. Use https://, or set engine.allow_http=True in a network of "
                "your own"
            )
        return self

    def _changed(self, fields: tuple[str, ...]) -> list[str]:
        defaults = {
            name: type(self).model_fields[name].get_default(call_default_factory=True) for name in fields
        }
        return [name for name in fields if getattr(self, name) != defaults[name]]

    @property
    def endpoint_host(self) -> str | None:
        return urlsplit(self.endpoint_url or "").hostname

    @property
    def is_local_endpoint(self) -> bool:
        """Whether the endpoint is on each node itself."""
        host = self.endpoint_host or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


_OWN_SHAPE = "give output_schema, or in sampling_params what your server takes (vLLM's: structured_outputs)"
_INSTEAD = {
    "engine_kwargs": "leave it out. Parameters of a request stand in sampling_params",
    "concurrency": "leave it out, and set engine.in_flight: requests at once",
    "max_concurrent_batches": "leave it out, and set engine.in_flight: requests at once",
    "regex": _OWN_SHAPE,
    "grammar": _OWN_SHAPE,
}
