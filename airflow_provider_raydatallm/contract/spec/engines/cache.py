"""Answers that slices of the same model share."""

from __future__ import annotations

from pydantic import field_validator

from airflow_provider_raydatallm.contract.addresses import check_address
from airflow_provider_raydatallm.contract.base import FOLDER
from airflow_provider_raydatallm.contract.spec.engines.base import Engine
from airflow_provider_raydatallm.contract.spec.field import Affects, Spec, leaf
from airflow_provider_raydatallm.contract.spec.sampling import is_deterministic


def _affects(job: Spec) -> Affects:
    """It shares random answers between slices, too. A preprocess function may set sampling_params."""
    is_random = job.preprocess is not None or not is_deterministic(job.task.sampling)
    return Affects.REQUEST if job.engine.deduplicate and is_random else Affects.NOTHING


class CachingEngine(Engine):
    """An engine whose answers other slices may get."""

    cache: str | None = leaf(
        None,
        affects=_affects,
        counts=lambda folder: folder is not None,  # wherever it is
        doc="folder (`s3://...`, or a path on every node) in which slices of the same model, also concurrent "
        "ones, share answers to identical requests. Follows `deduplicate`.",
        address=True,
    )
    cache_max_bytes: int = leaf(
        1 << 30,
        affects=Affects.NOTHING,
        doc="size of the cache per model and settings; the oldest answers go first. A slice holds them in "
        "memory.",
        ge=1 << 20,
    )
    cache_max_days: float = leaf(
        30.0,
        affects=Affects.NOTHING,
        doc="days for which the cache keeps an answer.",
        gt=0,
        allow_inf_nan=False,
    )

    @field_validator("cache")
    @classmethod
    def _check_cache(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not FOLDER.match(value) or "{slice}" in value:
            raise ValueError(
                "not a folder that slices can share: give an address such as "
                "'s3://bucket/answers', or an absolute path that exists on every node, without {slice}"
            )
        return check_address(value)

    @property
    def cache_folder(self) -> str | None:
        return self.cache

    def check(self, job: Spec) -> None:
        super().check(job)
        if self.cache is not None and self.deduplicate is False:
            raise ValueError(
                "engine.cache and engine.deduplicate=False contradict each other: a cache exists to avoid "
                "repeated requests. Leave one of them out"
            )
