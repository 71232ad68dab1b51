"""What the property test finds and is not repaired yet: the beginnings of causes. To be empty."""

from __future__ import annotations

import re

KNOWN: list[str] = []

#: Planted faults that the product has anyway.
UNFOUND: set[str] = set()


def is_known(cause: str) -> bool:
    return any(re.match(pattern, cause) for pattern in KNOWN)


#: Fault files, and odd types, that are neither published right nor refused in time.
UNREPAIRED: set[str] = set()
