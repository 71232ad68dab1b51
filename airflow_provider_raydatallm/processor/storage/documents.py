"""Documents: JSON values with a checksum that reveals damage.

A nonce makes each encoding differ, so that a writer knows its own when it reads it back.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any


def encode(body: Any) -> bytes:
    document = {"nonce": uuid.uuid4().hex, "sha256": _digest(body), "body": body}
    return json.dumps(document, ensure_ascii=False).encode()


def decode(data: bytes) -> Any:
    """:raises ValueError: for what is no document, or a damaged one."""
    try:
        document = json.loads(data)
        body, digest = document["body"], document["sha256"]
        is_whole = _digest(body) == digest
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e
    if not is_whole:
        raise ValueError("its checksum does not match")
    return body


def _digest(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
