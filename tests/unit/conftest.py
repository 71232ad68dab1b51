"""Nothing here loses power, so nothing waits for the disk: what survives that is not what these tests can
tell."""

from __future__ import annotations

import os

os.fsync = lambda handle: None  # type: ignore[assignment]
