"""Engine `http`: an endpoint outside the cluster, with OpenAI's API.

Its key is in none of the arguments: the job gets it as `KEY_VARIABLE`, from the connection that the operator
names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from airflow_provider_raydatallm.contract.base import Seconds
from airflow_provider_raydatallm.contract.spec.engines.base import Capabilities
from airflow_provider_raydatallm.contract.spec.engines.cache import CachingEngine
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf

#: The environment variable of the job that has the endpoint's key.
KEY_VARIABLE = "RAY_LLM_ENDPOINT_API_KEY"
#: Paths that follow the base address.
_APIS = ("/chat/completions", "/completions", "/embeddings")


def clean_key(text: str) -> str:
    """Returns a key as a header carries it: without the line break with which files of secrets end.

    :raises ValueError: for a character that no header can carry; the message does not quote the key.
    """
    key = text.strip()
    for place, character in enumerate(key, start=1):
        if not " " <= character <= "~":
            raise ValueError(f"its character {place} is U+{ord(character):04X}, which no header can carry")
    return key


class Http(CachingEngine):
    """An endpoint with OpenAI's API, which is known by its model: its address may change (a gateway, a port,
    a region), and the model's name says what answers."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        "airflow_provider_raydatallm.processor.engines.http.engine:HttpEngine",
        tasks=frozenset({"generate", "embed"}),
        follows=frozenset({"tools", "logprobs", "sampling_params['n']"}),
        reads_media_in_messages=True,
        first_logprob=True,
    )
    instead: ClassVar[Mapping[str, str]] = {
        "kwargs": "leave it out. Parameters of a request stand in sampling_params",
        "workers": "leave it out, and set engine.in_flight: requests at once",
        "max_concurrent_batches": "leave it out, and set engine.in_flight: requests at once",
        "regex": "give output_schema, or in sampling_params what your server takes (vLLM's: "
        "structured_outputs)",
        "grammar": "give output_schema, or in sampling_params what your server takes (vLLM's: "
        "structured_outputs)",
    }

    kind: Literal["http"] = leaf(affects=Affects.ANSWERS)
    url: str = leaf(
        affects=Affects.NOTHING,
        doc="base address, such as `https://host/v1`.",
        secret=True,
        stand_in="https://x",
    )
    allow_http: bool = leaf(
        False, affects=Affects.NOTHING, doc="allow an `http://` address of another machine."
    )
    in_flight: int = leaf(
        100, affects=Affects.NOTHING, doc="requests at once. Default: 100.", ge=1, le=10_000
    )
    requests_per_minute: float | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="requests that begin in a minute, at most, retries included.",
        gt=0,
        allow_inf_nan=False,
    )
    tokens_per_minute: float | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="tokens of prompts and answers in a minute, at most.",
        gt=0,
        allow_inf_nan=False,
    )
    token_budget: int | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="tokens of prompts and answers that a run may spend; it fails before it spends more.",
        ge=1,
    )
    request_timeout: Seconds = leaf(
        600.0,
        affects=Affects.NOTHING,
        doc="how long a request may take, whatever it waits for. Default: 10 minutes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_has_url(cls, leaves: Any) -> Any:
        if isinstance(leaves, Mapping) and leaves.get("url") is None:
            raise ValueError(
                "engine.kind 'http' needs engine.url: the base address of an endpoint with OpenAI's API, "
                "such as 'https://host/v1'"
            )
        return leaves

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        try:
            has_place = bool(parts.hostname) and parts.port != 0
        except ValueError:  # it quotes what it takes for a port, which may be half of a password
            has_place = False
        if parts.scheme not in ("http", "https") or not has_place:
            raise ValueError("give the base address of the endpoint, such as 'https://host/v1'")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(
                "the address has a user, a query or a fragment, which may hold a secret: give the base "
                "address only, such as 'https://host/v1', and its key by model_conn_id"
            )
        if api := next(filter(parts.path.rstrip("/").endswith, _APIS), None):
            raise ValueError(f"give the base address, without {api!r}, such as 'https://host/v1'")
        return value.rstrip("/")

    def check(self, job: Spec) -> None:
        super().check(job)
        if not (self.allow_http or self.url.startswith("https:") or self.is_local):
            raise ValueError(
                f"engine.url begins with http://, and {self.host!r} is another machine: key and rows would "
                "travel unencrypted. Use https://, or set engine.allow_http=True in a network of your own"
            )
        if self.token_budget is not None and job.quality.repair:
            raise ValueError(
                "engine.token_budget is counted anew for each attempt of quality.repair, and so would not "
                "hold: leave one of them out"
            )

    @property
    def host(self) -> str | None:
        return urlsplit(self.url).hostname

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is on each node itself."""
        host = self.host or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"
