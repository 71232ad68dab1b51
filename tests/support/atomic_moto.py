"""moto's server as a program, with one put at a time, as S3 promises: its threads look whether a file exists
and write it in two steps, so that two of them could create the same one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_one_put = threading.RLock()


def _alone(respond: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(respond)
    def responds(*args: Any) -> Any:
        with _one_put:
            return respond(*args)

    return responds


if __name__ == "__main__":
    for name in ("_key_response_put", "_key_response_post"):
        setattr(S3Response, name, _alone(getattr(S3Response, name)))
    main()
