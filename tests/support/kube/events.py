"""Events as components write them about an object."""

from __future__ import annotations

import secrets
from typing import Any

from tests.support.kube.store import Object, Store


def record(
    store: Store, about: Object, type: str, reason: str, message: str, component: str, action: str = ""
) -> None:
    """Writes an event, or counts one that says the same.

    :param action: of components that use the newer events API, which leaves the times of the older one empty
    """
    metadata = about["metadata"]
    now = store.timestamp()
    for event in store.objects("events", metadata["namespace"]):
        same = (event["involvedObject"]["uid"], event["reason"], event["message"])
        if same == (metadata["uid"], reason, message):
            if action:
                event["series"] = {
                    "count": event.get("series", {}).get("count", 1) + 1,
                    "lastObservedTime": now,
                }
            else:
                event.update(count=event["count"] + 1, lastTimestamp=now)
            store.update("events", metadata["namespace"], event)
            return
    times: dict[str, Any] = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
    if action:
        times = {"firstTimestamp": None, "lastTimestamp": None, "eventTime": store.micro_timestamp()}
    body = {
        "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}"},
        "involvedObject": {
            "kind": about["kind"],
            "apiVersion": about["apiVersion"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": type,
        "reason": reason,
        "message": message,
        "action": action,
        "reportingComponent": component,
        "reportingInstance": f"{component}-0",
        "source": {} if action else {"component": component},
        **times,
    }
    store.create("events", metadata["namespace"], body)
