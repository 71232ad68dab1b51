"""A server that speaks as much of the Ray Jobs REST API as waiting for jobs needs, for jobs that never end.

`python -m benchmarks.jobs_server PORT`. GET /stats says what was asked of it: the number of requests, and the
longest time between two looks at one job.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from typing import Any

from aiohttp import web

from airflow_provider_raydatallm.contract.log_lines import encode_line

_looks: dict[str, list[float]] = defaultdict(list)
_requests: dict[str, int] = defaultdict(int)


async def _job(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    _requests["status"] += 1
    _looks[name].append(time.monotonic())
    return web.json_response({"status": "RUNNING", "message": "", "driver_node_id": "n", "start_time": 1})


async def _log(request: web.Request) -> web.StreamResponse:
    """A log with a new line of progress in every second; its nonce is the job's id."""
    name = request.query["filename"].removeprefix("job-driver-").removesuffix(".log")
    _requests[request.match_info["media"]] += 1
    progress = {
        "step": "answer",
        "rows": 10,
        "planned": 100,
        "rows_per_s": 1.0,
        "tokens_per_s": 1.0,
        "eta_s": 9.0,
    }
    line = (encode_line("progress", name, progress) + "\n").encode()
    if request.match_info["media"] == "file":
        return web.Response(body=line)
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(line)
        await asyncio.sleep(1)


async def _package(request: web.Request) -> web.Response:
    await request.read()
    _requests["beat"] += 1
    return web.Response()


async def _stats(_: web.Request) -> web.Response:
    now = time.monotonic()
    gaps = [max(b - a for a, b in zip(seen, [*seen[1:], now], strict=True)) for seen in _looks.values()]
    return web.json_response(
        {"jobs": len(gaps), "longest_gap": max(gaps, default=0), "requests": dict(_requests)}
    )


async def _reset(_: web.Request) -> web.Response:
    """Forget the time before: each job's last look is where its next gap begins."""
    for seen in _looks.values():
        del seen[:-1]
    _requests.clear()
    return web.Response()


def main(port: int) -> None:
    app = web.Application()
    routes: list[Any] = [
        web.get("/api/jobs/{name}", _job),
        web.get("/api/v0/logs/{media}", _log),
        web.put("/api/packages/gcs/{name}", _package),
        web.get("/stats", _stats),
        web.post("/reset", _reset),
    ]
    app.add_routes(routes)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
