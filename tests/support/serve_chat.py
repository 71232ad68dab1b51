"""A Ray Serve application with OpenAI's chat completions, on the cluster of `RAY_ADDRESS`:
`python -m tests.support.serve_chat PORT` starts Serve anew with it, `... stop` ends Serve.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100)
class Chat:
    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        text = body["messages"][-1]["content"]
        return {
            "choices": [{"message": {"content": text.upper()}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": len(text.split()), "completion_tokens": 1},
        }


if __name__ == "__main__":
    [argument] = sys.argv[1:]
    ray.init(log_to_driver=False)
    serve.shutdown()
    if argument != "stop":
        serve.start(http_options={"host": "127.0.0.1", "port": int(argument)})
        serve.run(Chat.bind(), name="chat", route_prefix="/v1")
