"""What a GPU costs an hour: `engine.gpu_hour_price`, which an engine profile may say, else
`[ray_llm] gpu_hour_price`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from airflow.configuration import conf

from airflow_provider_raydatallm.contract.base import plain_text
from airflow_provider_raydatallm.contract.spec.engines import KINDS
from airflow_provider_raydatallm.contract.spec.engines.base import ClusterEngine

log = logging.getLogger(__name__)


def gpu_hour_price() -> float | None:
    """Returns the price in the configuration; None where none is set, or none that is a number."""
    text = conf.get("ray_llm", "gpu_hour_price", fallback="0")
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        # A wrong setting costs only the costs: neither the rows of a page nor a message.
        log.warning("[ray_llm] gpu_hour_price is %r: costs are not shown. Set it as 2.5", text)
        return None
    return price or None


def with_gpu_price(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an engine's leaves with the price that its job needs, as the cluster has no Airflow; as they
    are where they say one, or their kind holds no GPUs."""
    kind = KINDS.get(str(plain_text(engine.get("kind"))), ClusterEngine)
    if "gpu_hour_price" not in kind.model_fields or engine.get("gpu_hour_price") is not None:
        return engine
    return {**engine, "gpu_hour_price": gpu_hour_price()}
