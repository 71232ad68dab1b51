"""`[ray_llm] gpu_hour_price`, by which the page and messages say what slices cost."""

from __future__ import annotations

import logging
import math

from airflow.configuration import conf

log = logging.getLogger(__name__)


def gpu_hour_price() -> float | None:
    """Returns what a GPU costs an hour; None where no price is set, or none that is a number."""
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
