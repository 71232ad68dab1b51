"""Whatever an endpoint sends on a connection, and whenever: each row has its own answer, or none."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from airflow_provider_raydatallm.contract.spec.engines.http import KEY_VARIABLE
from airflow_provider_raydatallm.processor.engines.http import client, connections
from tests.support.certificates import Authority
from tests.support.http_feeding import KEY, feed
from tests.support.wire_endpoint import (
    Asked,
    NamingAsked,
    WireEndpoint,
    answer_to,
    head,
    vector_of,
    wire_endpoint,
)

ROWS = [f"row {i}" for i in range(24)]
#: Fewer than rows, so that a connection that is used again has the next row soon.
IN_FLIGHT = 4

Respond = Callable[[Any], Awaitable[None]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def whole(asked: Asked, body: bytes | None = None, **headers: str) -> bytes:
    body = asked.own_answer if body is None else body
    return head(200, {"Content-Length": str(len(body)), **headers}) + body


async def duplicate_at_once(asked: Asked) -> None:
    await asked.send_raw(whole(asked) * 2)


async def duplicate_after_20_ms(asked: Asked) -> None:
    await asked.send()
    asked.send_later(0.02, whole(asked))


async def duplicate_while_the_next_is_answered(asked: Asked) -> None:
    asked.send_later(0.06, whole(asked))
    await asyncio.sleep(0.04)
    await asked.send()


async def answer_after_504(asked: Asked) -> None:
    if asked.number % 3 == 0:
        await asked.send(status=504)
        asked.send_later(0.02, whole(asked))
    else:
        await asyncio.sleep(0.03)
        await asked.send()


async def answer_after_429(asked: Asked) -> None:
    if asked.number % 3 == 0:
        await asked.send(status=429, Retry_After="0.01")
        asked.send_later(0.02, whole(asked))
    else:
        await asyncio.sleep(0.03)
        await asked.send()


async def trailing_garbage_after_chunks(asked: Asked) -> None:
    body = asked.own_answer
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    if asked.number % 3:
        await asked.send_raw(head(200, {"Transfer-Encoding": "chunked"}) + chunks)
        return
    await asked.send_raw(
        head(200, {"Transfer-Encoding": "chunked"}) + chunks + b"\r\n\r\ngarbage" + whole(asked)
    )


async def informational_replies_first(asked: Asked) -> None:
    await asked.send_raw(head(102, {}) + head(103, {"Link": "x"}))
    await asked.send()


async def two_documents(asked: Asked) -> None:
    once = asked.own_answer
    await asked.send(once if asked.number % 3 else once * 2)


async def body_longer_than_it_says(asked: Asked) -> None:
    body = asked.own_answer
    extra = b"" if asked.number % 3 else whole(asked)
    await asked.send_raw(head(200, {"Content-Length": str(len(body))}) + body + extra)


async def body_shorter_than_it_says(asked: Asked) -> None:
    if asked.number % 3:
        await asked.send()
    else:
        await asked.send_raw(head(200, {"Content-Length": "9999"}) + asked.own_answer)
        asked.writer.close()


async def http_1_0(asked: Asked) -> None:
    await asked.send_raw(head(200, {}, version="1.0") + asked.own_answer)
    asked.writer.close()


async def http_1_0_that_stays_open(asked: Asked) -> None:
    headers = {"Connection": "keep-alive", "Content-Length": str(len(asked.own_answer))}
    await asked.send_raw(head(200, headers, version="1.0") + asked.own_answer)
    asked.send_later(0.02, whole(asked))


async def late_when_the_client_gave_up(asked: Asked) -> None:
    if asked.number % 10 == 0:
        asked.send_later(0.5, whole(asked))
        await asyncio.sleep(0.6)
    else:
        await asked.send()


FAULTS = [
    duplicate_at_once, duplicate_after_20_ms, duplicate_while_the_next_is_answered, answer_after_504,
    answer_after_429, trailing_garbage_after_chunks, informational_replies_first, two_documents,
    body_longer_than_it_says, body_shorter_than_it_says, http_1_0, http_1_0_that_stays_open,
    late_when_the_client_gave_up,
]  # fmt: skip


def answers(served: WireEndpoint, **fields: Any) -> dict[int, Any]:
    """Of each row: its text, or its vector as whole numbers of its smallest one."""
    defaults = {"engine__in_flight": IN_FLIGHT, "engine__deduplicate": False}
    sink, left = feed(served, ROWS, **{**defaults, **fields})
    assert left == []
    return {i: row["text"] if row["numbers"] is None else row["numbers"] for i, row in sink.by_row.items()}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [Asked, NamingAsked])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_row_has_its_own_answer(fault: Respond, asked: type[Asked]) -> None:
    with wire_endpoint(fault, asked) as served:
        published = answers(served, engine__request_timeout=0.3)
    assert published == {i: answer_to(text) for i, text in enumerate(ROWS)}


@pytest.mark.parametrize("fault", [duplicate_after_20_ms, answer_after_504])
def test_each_row_has_its_own_vector(fault: Respond) -> None:
    with wire_endpoint(fault) as served:
        published = answers(served, task="embed", sampling_params={}, embedding__normalize=False)
    assert published == {i: vector_of(text) for i, text in enumerate(ROWS)}


def test_each_row_has_its_own_answer_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    trusting = partial(aiohttp.TCPConnector, ssl=ssl.create_default_context(cafile=authority.ca_file))
    monkeypatch.setattr(aiohttp, "TCPConnector", trusting)
    with wire_endpoint(duplicate_after_20_ms, certificate=authority.issue("server")) as served:
        published = answers(served)
    assert published == {i: answer_to(text) for i, text in enumerate(ROWS)}


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.05, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("asked", [Asked, NamingAsked])
def test_duplicates_of_any_delay_are_nobodys_answer(delay: float, asked: type[Asked]) -> None:
    async def respond(request: Asked) -> None:
        await asyncio.sleep(0.1)
        await request.send()
        request.send_later(delay, whole(request))

    with wire_endpoint(respond, asked) as served:
        sink, _ = feed(served, [f"row {i}" for i in range(400)], engine__in_flight=10)
    assert {i: row["text"] for i, row in sink.by_row.items()} == {
        i: answer_to(f"row {i}") for i in range(400)
    }


async def answer_only(asked: Asked) -> None:
    await asked.send()


@pytest.mark.slow
def test_connections_are_used_again_only_where_replies_have_their_requests_id() -> None:
    with wire_endpoint(answer_only) as served:
        answers(served)
    assert served.connections == [1] * len(ROWS)
    assert served.requests[0][0]["connection"] == "close"
    with wire_endpoint(answer_only, NamingAsked) as naming:
        answers(naming)
    assert len(naming.connections) <= 2 * IN_FLIGHT
    assert sum(naming.connections) == len(ROWS)


async def echo_in_a_header(asked: Asked) -> None:
    await asked.send(X_Request_Id=asked.headers["x-request-id"])


def test_id_may_be_in_a_header() -> None:
    with wire_endpoint(echo_in_a_header) as served:
        answers(served)
    assert len(served.connections) <= 2 * IN_FLIGHT


async def refuse_each_third_row(asked: Asked) -> None:
    """As vLLM does: errors have no id."""
    await asked.send(status=400 if int(asked.text.split()[1]) % 3 == 0 else 200)


def test_refusal_on_a_connection_that_was_used_before_is_confirmed_on_a_new_one() -> None:
    with wire_endpoint(refuse_each_third_row, NamingAsked) as served:
        published = answers(served)
    assert published == {i: None if i % 3 == 0 else answer_to(text) for i, text in enumerate(ROWS)}
    refused = [text for text in served.texts if int(text.split()[1]) % 3 == 0]
    assert len(set(refused)) < len(refused) <= 2 * len(set(refused))


def test_answer_to_another_request_is_not_used_also_from_behind_a_gateway() -> None:
    """Each request has a connection of its own here, and the gateway's own connections are mixed up."""
    last: list[bytes] = []

    async def respond(asked: NamingAsked) -> None:
        last.append(asked.own_answer)
        mixed_up = asked.number % 3 == 2
        await asked.send(last[asked.number - 1] if mixed_up else asked.own_answer)
        asked.writer.close()

    with wire_endpoint(respond, NamingAsked) as served:
        published = answers(served)
    assert published == {i: answer_to(text) for i, text in enumerate(ROWS)}
    assert len(served.requests) > len(ROWS)


def test_answer_of_a_gateways_cache_to_an_equal_request_is_used() -> None:
    cache: dict[str, bytes] = {}

    async def respond(asked: NamingAsked) -> None:
        await asked.send(cache.setdefault(asked.text, asked.own_answer))

    with wire_endpoint(respond, NamingAsked) as served:
        sink, _ = feed(served, ["a", "b"] * 20, engine__in_flight=IN_FLIGHT)
    assert [row["text"] for _, row in sorted(sink.by_row.items())] == [answer_to("a"), answer_to("b")] * 20


def test_text_that_holds_an_id_names_no_request() -> None:
    """What a model writes is not what its server says."""

    async def respond(asked: Asked) -> None:
        told = f'"id": "rayllm-{"0" * 32}-{"0" * 12}"'
        choice = {"message": {"content": told}, "finish_reason": "stop"}
        await asked.send(json.dumps({"choices": [choice]}).encode())

    with wire_endpoint(respond) as served:
        sink, _ = feed(served, ["a"])
    assert (len(served.requests), sink.by_row[0]["error"]) == (1, None)


# What is read of a reply


async def endless(asked: Asked) -> None:
    """For one row, a reply without an end."""
    if asked.text != "bad":
        await asked.send()
        return
    await asked.send_raw(head(200, {"Content-Type": "application/json"}))
    with contextlib.suppress(ConnectionError):
        while not asked.writer.is_closing():
            await asked.send_raw(b" " * (1 << 16))


async def bomb(asked: Asked) -> None:
    """For one row, a gigabyte of spaces in a megabyte."""
    if asked.text != "bad":
        await asked.send()
        return
    await asked.send(_BOMB, Content_Encoding="gzip")


_BOMB = gzip.compress(b" " * (200 << 20), 1)


@pytest.mark.parametrize("fault", [endless, bomb])
def test_reply_without_an_end_fails_its_row_alone(fault: Respond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_REPLY_BYTES", 1 << 20)
    with wire_endpoint(fault) as served:
        sink, left = feed(served, ["a", "bad", "b"])
    assert (left, sink.by_row[1]["error_type"]) == ([], "RefusedByEndpoint")
    assert "over 1,048,576 bytes" in sink.by_row[1]["error"]
    assert sink.by_row[2]["text"] == answer_to("b")


async def endless_error(asked: Asked) -> None:
    if asked.number:
        await asked.send()
        return
    await asked.send_raw(head(500, {"Content-Type": "text/html"}))
    with contextlib.suppress(ConnectionError):
        while not asked.writer.is_closing():
            await asked.send_raw(b"<p>" * (1 << 14))


def test_error_without_an_end_is_an_error_as_any_other() -> None:
    with wire_endpoint(endless_error) as served:
        sink, _ = feed(served, ["a"])
    assert (sink.by_row[0]["text"], len(served.requests)) == (answer_to("a"), 2)


async def drip(asked: Asked) -> None:
    if asked.number:
        await asked.send()
        return
    await asked.send_raw(head(200, {"Content-Length": "1000"}))
    with contextlib.suppress(ConnectionError):
        while not asked.writer.is_closing():
            await asked.send_raw(b" ")
            await asyncio.sleep(0.05)


@pytest.mark.slow
def test_slow_reply_ends_with_its_time() -> None:
    with wire_endpoint(drip) as served:
        sink, _ = feed(served, ["a"], engine__request_timeout=0.3)
    assert (sink.by_row[0]["text"], len(served.requests)) == (answer_to("a"), 2)


@pytest.mark.slow
def test_large_replies_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one: what the second does not fit into the sockets' buffers waits for the first."""
    monkeypatch.setattr(connections, "_LARGE_REPLIES", 1)
    events: list[str] = []

    async def respond(asked: Asked) -> None:
        body = asked.own_answer + b" " * (32 << 20)
        await asked.send_raw(head(200, {"Content-Length": str(len(body))}) + body[: 1 << 20])
        await asyncio.sleep(0.5 if asked.number == 0 else 0)
        if asked.number == 0:
            events.append("first goes on")
        await asked.send_raw(body[1 << 20 :])
        events.append("sent")

    with wire_endpoint(respond) as served:
        sink, _ = feed(served, ["a", "b"])
    assert [sink.by_row[i]["text"] for i in range(2)] == [answer_to("a"), answer_to("b")]
    assert events[0] == "first goes on"


# How many connections there may be


@pytest.mark.slow
def test_more_requests_in_flight_than_files_are_fewer() -> None:
    code = """
import resource
from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.http.connections import most_connections
for limits in ((4096, 4096), (512, 4096), (512, 512), (200, 200)):
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        print(most_connections(1000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    except SliceError as e:
        print(e.kind)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    enough, raised, fewer, none = ran.stdout.splitlines()
    assert enough == "1000 4096"
    assert int(raised.removeprefix("1000 ")) > 1000
    assert 0 < int(fewer.removesuffix(" 512")) < 256
    assert none == "input"
    assert ran.stderr.count("engine.in_flight is 1,000") == 1
