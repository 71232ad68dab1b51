"""Nodes that are about to leave the cluster: Ray was told that they are reclaimed, or have to be empty."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5


def leaving_nodes() -> Mapping[str, float]:
    """Returns when each of them goes, in epoch seconds, by their hex ids; infinity for one that goes when it
    has nothing more to do. None of them where the cluster does not say."""
    from ray._private.worker import global_worker

    try:
        leaving = global_worker.gcs_client.get_draining_nodes(timeout=_TIMEOUT_S)
    except Exception as e:  # a head that starts again
        logger.debug("Cannot ask which nodes leave", exc_info=e)
        return {}
    return {str(node): at_ms / 1000 if at_ms else math.inf for node, at_ms in leaving.items()}
