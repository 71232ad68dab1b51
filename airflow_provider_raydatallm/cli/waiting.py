"""What a command waits for, on stderr, from a few seconds on."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_EVERY_S = 5.0


class Waiting:
    """Prints `text`, which may change meanwhile, every few seconds until the block ends."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print, name="ray-llm-waiting", daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _print(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(_EVERY_S):
            print(f"{self.text}, for {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
