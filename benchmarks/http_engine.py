"""Slices answered by an endpoint, a stub of one in a process of its own, from real Ray.

Goals: one process has 1,000 requests in flight, and 90% of the rows per second that the stub can answer then;
no row is lost or asked twice; requests and tokens per minute are within 2% of their limits, also in the worst
minute (requests) and over the run (tokens).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.runs import by_operator
from benchmarks.table import Figure, say, show

IN_FLIGHT = int(os.environ.get("BENCH_HTTP_IN_FLIGHT", 1000))
ROWS = int(os.environ.get("BENCH_HTTP_ROWS", 15_000))
#: What the stub takes for a request, at most: with it, so many in flight are half as many a second.
SECONDS = 4.0
REQUESTS_PER_MINUTE = 12_000
TOKENS_PER_MINUTE = 1_200_000
GOAL, WITHIN = 0.9, 0.02


def run() -> bool:
    from airflow_provider_raydatallm.clusters.embedded.head import ensure_head, stop_head

    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        os.environ["AIRFLOW_RAY_LLM_LOCAL_DIR"] = f"{folder}/head"
        os.environ["AIRFLOW_CONN_RAY_DEFAULT"] = "ray://local"
        pq.write_table(
            pa.table({"name": [f"Company number {n}" for n in range(ROWS)]}), f"{folder}/in.parquet"
        )
        ensure_head()
        try:
            full = _measure(folder, "full", {"in_flight": IN_FLIGHT})
            paced = _measure(folder, "requests", {"requests_per_minute": REQUESTS_PER_MINUTE})
            metered = _measure(folder, "tokens", {"tokens_per_minute": TOKENS_PER_MINUTE})
        finally:
            stop_head()
    possible = IN_FLIGHT / (SECONDS * 3 / 4)
    lost = [f"{r['asked'] - ROWS:+,}, {ROWS - r['succeeded']:,}" for r in (full, paced, metered)]
    worst = _worst_minute(paced["begun"])
    rate = _per_minute(paced["begun"], len(paced["begun"]))
    tokens = _per_minute(metered["begun"], metered["tokens"])
    return show(
        [
            Figure("requests in flight", f"{full['most']:,}", f"{IN_FLIGHT:,}", full["most"] == IN_FLIGHT),
            Figure(
                "rows/s", f"{full['rows_per_s']:,.0f}", f"{possible * GOAL:,.0f}",
                full["rows_per_s"] >= possible * GOAL,
            ),
            Figure("asked twice, not answered", "; ".join(lost), "+0, 0", set(lost) == {"+0, 0"}),
            _within("requests a minute", rate, REQUESTS_PER_MINUTE),
            Figure(
                "requests in the worst minute", f"{worst:,}", f"{REQUESTS_PER_MINUTE * (1 + WITHIN):,.0f}",
                worst <= REQUESTS_PER_MINUTE * (1 + WITHIN),
            ),
            _within("tokens a minute", tokens, TOKENS_PER_MINUTE),
        ]
    )  # fmt: skip


def _measure(folder: str, name: str, engine: dict[str, Any]) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stub = subprocess.Popen([sys.executable, "-m", "benchmarks.http_engine", str(port)])
    try:
        _, result = by_operator(
            input_path=f"{folder}/in.parquet",
            output_path=f"{folder}/{name}",
            slice_key="2026-01-31",
            model_source="stub",
            prompt="What industry is this company in: {name}",
            sampling_params={"max_tokens": 16},
            engine={"kind": "http", "url": f"http://127.0.0.1:{port}/v1", "in_flight": IN_FLIGHT, **engine},
            poll_interval=1.0,
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/figures") as reply:
            figures: dict[str, Any] = json.load(reply)
    finally:
        stub.kill()
    say(f"{name}: {result['counts']}, {result['seconds']}, {result['throughput']}")
    rates = {"rows_per_s": result["throughput"]["rows_per_s"]}
    return {**figures, **rates, "succeeded": result["counts"]["succeeded"], "asked": len(figures["begun"])}


def _per_minute(begun: list[float], amount: float) -> float:
    return amount / (begun[-1] - begun[0]) * 60


def _worst_minute(begun: list[float]) -> int:
    """The most that began within 60 s."""
    first = worst = 0
    for last, at in enumerate(begun):
        while begun[first] < at - 60:
            first += 1
        worst = max(worst, last - first + 1)
    return worst


def _within(what: str, measured: float, limit: float) -> Figure:
    off = measured / limit - 1
    return Figure(what, f"{measured:,.0f} ({off:+.1%})", f"{limit:,} +- {WITHIN:.0%}", abs(off) <= WITHIN)


def _serve(port: int) -> None:
    from aiohttp import web

    rnd = random.Random(7)
    begun: list[float] = []
    in_flight = most = tokens = 0

    async def complete(request: web.Request) -> web.Response:
        nonlocal in_flight, most, tokens
        begun.append(time.monotonic())
        in_flight += 1
        most = max(most, in_flight)
        await request.read()
        await asyncio.sleep(rnd.uniform(SECONDS / 2, SECONDS))
        in_flight -= 1
        usage = {"prompt_tokens": 60, "completion_tokens": rnd.randint(1, 80)}
        tokens += sum(usage.values())
        choice = {"message": {"content": "Healthcare"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": usage})

    async def figures(request: web.Request) -> web.Response:
        return web.json_response({"begun": begun, "most": most, "tokens": tokens})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/figures", figures)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, backlog=4096)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
