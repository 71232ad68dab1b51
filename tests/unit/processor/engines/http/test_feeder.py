"""A feeder, its client and a real endpoint on loopback: none lost, none twice, whatever the endpoint does."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engines.http import KEY_VARIABLE
from airflow_provider_raydatallm.processor.engines.http import client, connections
from tests.support.endpoint import Endpoint, HangUp, completion, embedding, endpoint, error, text_of
from tests.support.http_feeding import KEY, Sink, feed

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setenv(KEY_VARIABLE, KEY)


async def echo(number: int, body: dict[str, Any]) -> web.StreamResponse:
    return completion(text_of(body).upper())


def test_answers_belong_to_their_rows() -> None:
    with endpoint(echo) as served:
        sink, left = feed(served, [f"row {i}" for i in range(300)], engine__in_flight=50)
    assert left == []
    assert {i: a["text"] for i, a in sink.by_row.items()} == {i: f"ROW {i}" for i in range(300)}
    answer = sink.by_row[7]
    assert (answer["input_tokens"], answer["output_tokens"], answer["finish_reason"]) == (7, 3, "stop")
    assert 0 <= answer["engine_seconds"] < 10
    headers, body = served.requests[0]
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "m/m"


def test_passing_faults_lose_no_row_and_answer_none_twice() -> None:
    """Each row meets one fault, of seven kinds, before it is answered."""
    seen: Counter[str] = Counter()

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        seen[text] += 1
        if seen[text] > 1:
            return completion(text.upper())
        match int(text.split()[1]) % 7:
            case 0:
                return error(429, **{"Retry-After": "0.2"})
            case 1:
                return error(500)
            case 2:
                await asyncio.sleep(3)
            case 3:
                return web.Response(text='{"choices": [{"mess')
            case 4:
                raise ConnectionResetError  # an answer of 500 without a body
            case 5:
                return error(503, **{"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"})
        return web.Response(status=200, text="<html>a proxy's page</html>")

    texts = [f"row {i}" for i in range(70)]
    with endpoint(respond) as served:
        sink, left = feed(served, texts, engine__request_timeout=1.5, engine__in_flight=70)
    assert left == []
    assert {i: a["text"] for i, a in sink.by_row.items()} == {i: f"ROW {i}" for i in range(70)}
    assert set(seen.values()) == {2}


def test_refused_rows_are_quarantined_and_stop_no_other() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        return error(400, f"too long, {KEY}") if text == "bad" else completion(text)

    with endpoint(respond) as served:
        sink, left = feed(served, ["a", "bad", "b"])
    assert left == []
    assert [sink.by_row[i]["text"] for i in range(3)] == ["a", None, "b"]
    assert sink.by_row[1]["error_type"] == "RefusedByEndpoint"
    assert sink.by_row[1]["error"] == "the endpoint answered 400: too long, ***"


def test_answer_without_text_is_refused_unless_max_tokens_cut_it() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        reason = "length" if text_of(body) == "thinks" else "content_filter"
        return completion(None, finish_reason=reason)

    with endpoint(respond) as served:
        sink, _ = feed(served, ["thinks", "bad"])
    cut, refused = sink.by_row[0], sink.by_row[1]
    assert (cut["text"], cut["finish_reason"], cut["error"], cut["output_tokens"]) == (
        None,
        "length",
        None,
        3,
    )
    assert (refused["error_type"], "content_filter" in refused["error"]) == ("RefusedByEndpoint", True)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"message": {"content": "\ud800"}}, "not valid Unicode"),
        ({"message": {"content": "Par"}, "finish_reason": "content_filter"}, "filtered its answer"),
        ({"message": {"content": None, "refusal": "\ud800"}, "finish_reason": "stop"}, "refused to answer"),
    ],
)
def test_answer_that_cannot_be_published_stops_no_other_row(reply: dict[str, Any], says: str) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"choices": [reply]}) if text_of(body) == "bad" else completion("x")

    with endpoint(respond) as served:
        sink, left = feed(served, ["a", "bad", "b"])
    assert (left, sorted(sink.by_row)) == ([], [0, 1, 2])
    bad = sink.by_row[1]
    assert (bad["text"], bad["error_type"], says in bad["error"]) == (None, "RefusedByEndpoint", True)


def test_endpoint_that_is_away_fails_the_slice_and_no_row() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(502)

    with endpoint(respond) as served, pytest.raises(SliceError, match="in each of 8 tries") as caught:
        feed(served, ["a", "b"])
    assert caught.value.kind == "transient"
    assert caught.value.__notes__ == ["[]"]
    with pytest.raises(SliceError, match="cannot be reached"):  # nobody listens
        feed(served, ["a"])


async def answer_but_for_poison(number: int, body: dict[str, Any]) -> web.StreamResponse:
    text = text_of(body)
    return error(500, f"no, {KEY}") if text.startswith("poison") else completion(text)


def tries_of(served: Endpoint, text: str) -> int:
    return served.texts.count(text)


def test_row_that_alone_gets_no_answer_is_quarantined() -> None:
    """Between the last tries the endpoint answers another text, each time another one."""
    with endpoint(answer_but_for_poison) as served:
        sink, left = feed(served, ["a", "poison", "b"])
    assert left == []
    assert [sink.by_row[i]["text"] for i in range(3)] == ["a", None, "b"]
    failed = sink.by_row[1]
    assert (failed["error_type"], failed["worker"]) == ("FailedAtEndpoint", "endpoint")
    assert failed["error"] == (
        "the endpoint answered 500: no, ***, in each of 12 tries, while it answers others"
    )
    last = served.texts[-12:]
    assert [text == "poison" for text in last] == [False, True, False] * 4
    assert tries_of(served, "poison") == 12
    others = [text for text in last if text != "poison"]
    assert len(set(others)) == 8


def test_slice_of_such_rows_alone_is_finished_too() -> None:
    """As a retry has it, for which nothing else is left."""
    with endpoint(answer_but_for_poison) as served:
        sink, _ = feed(served, [f"poison {i}" for i in range(40)], engine__in_flight=4)
    assert {answer["error_type"] for answer in sink.by_row.values()} == {"FailedAtEndpoint"}
    assert len(sink.by_row) == 40


def test_rows_that_wait_for_another_try_leave_their_places() -> None:
    """As many rows without an answer as the slice may ask at once."""
    with endpoint(answer_but_for_poison) as served:
        feed(served, [*(f"poison {i}" for i in range(4)), *map(str, range(8))], engine__in_flight=4)
    answered = [i for i, text in enumerate(served.texts) if text.isdigit()]
    assert answered[-1] < 4 * client.TRIES


@pytest.mark.parametrize("at_other_text", [500, 400, 200])
def test_endpoint_that_goes_away_quarantines_no_row(at_other_text: int) -> None:
    """Whatever something before it answers for it. One row was asked before, and another answered since."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        if text.startswith("Hello ") and at_other_text == 400:
            return error(400)
        if text.startswith("Hello ") and at_other_text == 200:  # without an answer
            return completion(None, finish_reason="content_filter")
        return error(503) if number > 20 or text == "poison" else completion(text)

    with endpoint(respond) as served, pytest.raises(SliceError, match="in each of 8 tries") as caught:
        feed(served, ["poison", *map(str, range(60))], engine__in_flight=4)
    assert caught.value.kind == "transient"
    answered = json.loads(caught.value.__notes__[0])
    assert 0 not in answered
    assert len(answered) == len({t for t in served.texts[:21] if t.isdigit()})


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_endpoint_that_answers_now_and_then_quarantines_no_row(share: float) -> None:
    """Any request may fail: 150 rows, and what is asked between their tries. One of 25 such slices fails at
    its last row, for which alone the endpoint seems to be away: then a retry goes on."""
    luck = random.Random(7)

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(500) if luck.random() < share else completion(text_of(body))

    left = [f"row {i}" for i in range(150)]
    with endpoint(respond) as served:
        while left:
            sink = Sink()
            try:
                feed(served, left, sink, engine__in_flight=50)
            except SliceError as e:
                if e.kind != "transient" or len(sink.by_row) < len(left) - 10:
                    raise
            answered = {answer["text"] for answer in sink.answers}
            assert answered <= set(left)  # None is a row in quarantine
            left = [text for text in left if text not in answered]


def test_row_on_trial_is_answered_when_the_endpoint_is_back() -> None:
    """The endpoint fails its tries, and what is asked after the first of the last ones."""
    tries = 0

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal tries
        if text_of(body) != "a":
            return error(503) if tries == client.TRIES + 1 else completion("x")
        tries += 1
        return error(503) if tries <= client.TRIES + 3 else completion("back")

    with endpoint(respond) as served:
        sink, left = feed(served, ["a"])
    assert (left, sink.by_row[0]["text"]) == ([], "back")


def test_refused_key_ends_the_slice_when_the_rows_in_flight_are_delivered() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if text_of(body) == "slow":
            await asyncio.sleep(1)
            return completion("answered")
        await asyncio.sleep(0.3)
        return error(401, f"{KEY} is not valid")

    with endpoint(respond) as served, pytest.raises(SliceError, match="check the password") as caught:
        feed(served, ["slow", *map(str, range(50))], engine__in_flight=4)
    assert (caught.value.kind, caught.value.__notes__) == ("input", ["[0]"])
    assert KEY not in str(caught.value)
    assert len(served.requests) <= 4 + 2 * client.TRIES  # rows in flight, and one of them again


@pytest.mark.parametrize("status", [401, 402, 404, 302])
def test_refusal_of_all_that_passes_ends_no_slice(status: int) -> None:
    """As while a gateway reads its routes again: six requests after others were answered."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(status) if 20 <= number < 26 else completion(text_of(body))

    texts = [f"row {i}" for i in range(60)]
    with endpoint(respond) as served:
        sink, left = feed(served, texts, engine__in_flight=1)
    assert (left, [sink.by_row[i]["text"] for i in range(60)]) == ([], texts)


def test_refusal_of_all_that_passes_before_the_first_answer_ends_no_slice() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(404) if number < 3 else completion(text_of(body))

    with endpoint(respond) as served:
        sink, left = feed(served, ["a"])
    assert (left, sink.by_row[0]["text"], len(served.requests)) == ([], "a", 4)


def test_key_that_is_withdrawn_ends_the_slice() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion("x") if number < 20 else error(401)

    with endpoint(respond) as served, pytest.raises(SliceError, match="check the password") as caught:
        feed(served, [f"row {i}" for i in range(60)], engine__in_flight=4)
    assert caught.value.kind == "input"
    assert len(json.loads(caught.value.__notes__[0])) == 20
    assert len(served.requests) < 60 + 2 * client.TRIES  # one row asks again


def test_row_that_is_refused_before_any_other_is_answered_ends_no_slice() -> None:
    """Refusals take no time, and the first answers do."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if text_of(body) == "bad":
            return error(402, "less max_tokens")
        await asyncio.sleep(0.3)
        return completion(text_of(body))

    texts = ["a", "bad", *map(str, range(50))]
    with endpoint(respond) as served:
        sink, left = feed(served, texts, engine__in_flight=20)
    assert (left, sink.by_row[1]["error_type"]) == ([], "FailedAtEndpoint")
    assert [sink.by_row[i]["text"] for i in range(52) if i != 1] == texts[:1] + texts[2:]


@pytest.mark.parametrize("answered", [0, 20])
def test_rows_that_wait_for_a_place_are_not_asked_in_doubt(answered: int) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion("x") if number < answered else error(401)

    with endpoint(respond) as served, pytest.raises(SliceError, match="check the password"):
        feed(served, [f"row {i}" for i in range(200)], engine__in_flight=2)
    assert len(served.requests) <= answered + 2 + 2 * client.TRIES


@pytest.mark.parametrize("tries", [4, 7])
def test_endpoint_that_restarts_before_its_model_has_the_time_of_a_refusal_of_all(
    tries: int,
) -> None:
    """503 while it is away, then 404 until its model is there; or for ever."""
    phases = [*["x"], *[503] * tries, *[404] * 3]

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        status = phases[number] if number < len(phases) else last
        return completion(text_of(body)) if status == "x" else error(int(status))

    last: str | int = "x"
    with endpoint(respond) as served:
        sink, left = feed(served, ["a", "b"], engine__in_flight=1)
    assert (left, [sink.by_row[i]["text"] for i in range(2)]) == ([], ["a", "b"])
    last = 404
    with endpoint(respond) as served, pytest.raises(SliceError, match="has no such model"):
        feed(served, ["a", "b"], engine__in_flight=1)


def test_one_row_asks_in_each_time_of_doubt() -> None:
    """Rows that have waited for the first one to ask wait in the second, too."""
    tries: Counter[str] = Counter()
    back_at: list[int] = []
    freed: set[str] = set()
    all_have_asked = asyncio.Event()

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        tries[text] += 1
        if number < 20:
            return completion("x")
        if tries[text] == 4 and not back_at:
            back_at.append(number)
            return completion("x")
        if back_at:  # no row knows of the second time before all have asked
            freed.add(text)
            if len(freed) == 39:
                all_have_asked.set()
            await all_have_asked.wait()
        return error(401)

    with endpoint(respond) as served, pytest.raises(SliceError, match="check the password"):
        feed(served, [f"row {i}" for i in range(60)], engine__in_flight=50)
    assert 39 < len(served.requests) - back_at[0] < 2 * 39


@pytest.mark.parametrize("status", [403, 424, 451, 406])
def test_flagged_row_is_quarantined_when_another_text_is_answered(status: int) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        return error(status, f"your input was flagged, {KEY}") if text == "bad" else completion(text)

    with endpoint(respond) as served:
        sink, left = feed(served, ["bad", "a"])
    assert (left, sink.by_row[1]["text"]) == ([], "a")
    assert sink.by_row[0]["error_type"] == "RefusedByEndpoint"
    assert f"{status}: your input was flagged, ***" in sink.by_row[0]["error"]
    assert (tries_of(served, "bad"), len(served.requests)) == (2, 4)


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize(
    ("params", "is_refused"),
    [
        ({"response_format": {"type": "json_object"}}, lambda body: "json" not in text_of(body)),
        ({"min_tokens": 20}, lambda body: body["max_tokens"] < body["min_tokens"]),
        ({"thinking": {"budget_tokens": 64}}, lambda body: body["max_tokens"] <= 64),
    ],
    ids=["json", "shortest answer", "thoughts"],
)
def test_rules_of_the_parameters_are_no_reason_to_end_the_slice(
    params: dict[str, Any], is_refused: Any, status: int
) -> None:
    """An endpoint may refuse another text with them."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if params.keys() <= body.keys() and is_refused(body):
            return error(400, "not with these parameters")
        return error(status) if text_of(body).startswith("bad") else completion("{}")

    texts = ["json 1", "bad json", "json 2"]
    with endpoint(respond) as served:
        sink, left = feed(served, texts, sampling_params={"max_tokens": 100, **params})
    assert (left, [sink.by_row[i]["text"] for i in range(3)]) == ([], ["{}", None, "{}"])


def test_refusal_of_all_texts_ends_the_slice() -> None:
    """With what was answered before."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion("x") if number < 3 else error(403, f"no rights, {KEY}")

    with (
        endpoint(respond) as served,
        pytest.raises(
            SliceError, match=r"403 at http://127.0.0.1:[0-9]+/v1/chat/completions: no rights"
        ) as caught,
    ):
        feed(served, [str(i) for i in range(30)], engine__in_flight=2)
    assert (caught.value.kind, KEY in str(caught.value)) == ("input", False)
    assert len(json.loads(caught.value.__notes__[0])) == 3


def test_refused_row_waits_while_it_is_open_whether_all_are_refused() -> None:
    """The endpoint fails what is asked after the first refusals."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if text_of(body) == "bad":
            return error(403)
        return error(503) if number < 6 else completion("x")

    with endpoint(respond) as served:
        sink, _ = feed(served, ["bad"])
    assert sink.by_row[0]["error_type"] == "RefusedByEndpoint"
    assert served.texts.count("bad") == 5


def test_vector_of_another_size_costs_its_row_only_unless_all_have_it() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        is_odd = text_of(body) == "odd" or number > 20
        return embedding([1.0] * (3 if is_odd else 2))

    with endpoint(respond) as served:
        texts, fields = ["a", "odd", "b"], {"task": "embed", "sampling_params": {}, "engine__in_flight": 1}
        sink, left = feed(served, texts, **fields)
        assert (left, sink.by_row[1]["error_type"]) == ([], "RefusedByEndpoint")
        assert "3 numbers after others of 2" in sink.by_row[1]["error"]
        with pytest.raises(SliceError, match="Check that model_source"):
            feed(served, [str(i) for i in range(60)], **fields)


def test_key_loses_its_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, f"{KEY}\r\n")
    with endpoint(echo) as served:
        feed(served, ["a"])
    assert served.requests[0][0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("character", ["\n", "\x7f", "\u200b", "\u201d"])
def test_key_that_no_header_can_carry_ends_the_slice_before_a_request(
    character: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, f"sk{character}0123456789")
    with endpoint(echo) as served, pytest.raises(SliceError, match="character 3 is U") as caught:
        feed(served, ["a"])
    assert (caught.value.kind, "0123456789" in str(caught.value), served.requests) == ("input", False, [])


@pytest.fixture
def elsewhere() -> Iterator[Endpoint]:
    with endpoint(echo) as other:
        yield other


def test_redirect_takes_neither_key_nor_row_elsewhere(elsewhere: Endpoint) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"{elsewhere.url}/chat/completions"})

    with endpoint(respond) as served, pytest.raises(SliceError, match="not followed"):
        feed(served, ["a"])
    assert elsewhere.requests == []


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A proxy that answers in the place of hosts that do not exist, and tunnels to none."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with endpoint(echo) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name.lower(), raising=False)
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        yield proxy


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_proxy_of_the_environment_is_used_but_for_this_machine(
    proxied: Endpoint, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", os.environ["HTTP_PROXY"].replace("http://", scheme))
    sink, _ = feed(Endpoint("http://models.invalid/v1"), ["a"], engine__allow_http=True)
    assert (sink.by_row[0]["text"], proxied.requests[0][0]["Host"]) == ("A", "models.invalid")
    with endpoint(echo) as served:
        feed(served, ["b"])
    assert (served.texts, len(proxied.requests)) == (["b"], 1)


def test_proxy_that_refuses_to_connect_ends_the_slice_and_gets_no_key(proxied: Endpoint) -> None:
    with pytest.raises(SliceError, match=r"the proxy \(HTTPS_PROXY .*NO_PROXY") as caught:
        feed(Endpoint("https://models.invalid/v1"), ["a"])
    assert (caught.value.kind, proxied.requests) == ("input", [])


@pytest.mark.parametrize(
    ("address", "kind", "says"),
    [("socks5://127.0.0.1:1080", "input", "no address"), ("http://[::1", "input", "no address"),
     ("http://127.0.0.1:1", "transient", "proxy .* cannot be reached")],
)  # fmt: skip
def test_proxy_that_cannot_be_used_is_named(
    proxied: Endpoint, monkeypatch: pytest.MonkeyPatch, address: str, kind: str, says: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", address)
    with pytest.raises(SliceError, match=says) as caught:
        feed(Endpoint("http://models.invalid/v1"), ["a"], engine__allow_http=True)
    assert (caught.value.kind, proxied.requests) == (kind, [])


def test_nodes_own_credentials_are_not_for_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the node's .netrc, for a host that is not the node itself by its name."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login node password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("no_proxy", "*")
    for key, sent in ((KEY, f"Bearer {KEY}"), ("", None)):
        monkeypatch.setenv(KEY_VARIABLE, key)
        with endpoint(echo) as served:
            served.url = served.url.replace("127.0.0.1", "0.0.0.0")
            sink, _ = feed(served, ["a"], engine__allow_http=True)
        assert sink.by_row[0]["text"] == "A"
        [(headers, _)] = served.requests
        assert headers.get("Authorization") == sent


class Meter:
    """An endpoint's own count of what it spent."""

    def __init__(self, counts: Any, fault: Callable[[int], web.StreamResponse | None] = lambda number: None):
        """
        :param counts: what it says of them: a function of the true numbers.
        :param fault: its gateway's reply in place of an answer, which is paid for all the same.
        """
        self.spent = 0
        self._counts, self._fault = counts, fault
        self._luck = random.Random(7)

    async def __call__(self, number: int, body: dict[str, Any]) -> web.StreamResponse:
        limit = body.get("max_tokens")
        answer = self._luck.randint(1, limit) if limit else 500 + self._luck.randint(0, 500)
        tokens = (len(text_of(body)) // 4 + 10, answer)
        self.spent += sum(tokens)
        await asyncio.sleep(0.02)
        return self._fault(number) or completion("x" * answer, self._counts(*tokens))


def truly(*tokens: int) -> tuple[int, int]:
    return tokens[0], tokens[1]


@pytest.mark.parametrize("in_flight", [1, 100, 1000])
@pytest.mark.parametrize("max_tokens", [None, 1000])
@pytest.mark.parametrize("counts", [truly, lambda *tokens: (0, 0), None], ids=["counted", "zeros", "some"])
def test_budget_holds_whatever_is_in_flight(in_flight: int, max_tokens: int | None, counts: Any) -> None:
    answers = itertools.count()
    meter = Meter(counts or (lambda *tokens: tokens if next(answers) < 5 else (None, None)))
    params = {"max_tokens": max_tokens} if max_tokens else {}
    rows = [f"row {i}" for i in range(1100)]
    with endpoint(meter) as served, pytest.raises(SliceError, match=r"engine\.token_budget") as caught:
        feed(served, rows, engine__token_budget=10_000, engine__in_flight=in_flight, sampling_params=params)
    assert caught.value.kind == "input"
    assert len(json.loads(caught.value.__notes__[0])) == len(served.requests)
    assert meter.spent <= 10_000 + (0 if max_tokens else 1000)
    if counts is truly:
        assert meter.spent > 7_000  # another request might take what is left


@pytest.mark.parametrize("status", [408, 500, 502, 504, 524, None])
def test_what_a_gateway_gave_up_waiting_for_counts(status: int | None) -> None:
    """Or it closes the connection."""

    def fault(number: int) -> web.StreamResponse | None:
        if number % 3 == 0:
            return None
        return HangUp() if status is None else error(status)

    meter = Meter(truly, fault)
    with endpoint(meter) as served, pytest.raises(SliceError, match=r"engine\.token_budget") as e:
        feed(served, [f"row {i}" for i in range(200)], engine__token_budget=10_000, engine__in_flight=20)
    assert "of them estimated" in str(e.value)
    assert meter.spent <= 10_000 + 1_000


def test_answer_that_cannot_be_read_counts_by_its_length() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text="x" * 8_000) if number % 2 else completion("x")

    with endpoint(respond) as served, pytest.raises(SliceError, match="token_budget 50,000"):
        feed(served, [str(i) for i in range(100)], engine__token_budget=50_000, engine__in_flight=1)
    assert len(served.requests) < 2 * 50_000 / 8_000 + 4


def test_answer_that_is_too_long_to_be_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_REPLY_BYTES", 10_000)

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion("x" * 20_000, (20, 20_000))

    with endpoint(respond) as served, pytest.raises(SliceError, match=r"engine\.token_budget"):
        feed(served, [f"row {i}" for i in range(20)], engine__token_budget=50_000, engine__in_flight=1)
    assert len(served.requests) <= 5


@pytest.mark.parametrize(
    "reply", [web.Response, HangUp, lambda: error(504)], ids=["unreadable", "cut", "504"]
)
def test_until_a_row_is_answered_only_one_asks_again_for_what_may_have_cost(reply: Any) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        answer: web.StreamResponse = reply()
        return answer

    with endpoint(respond) as served, pytest.raises(SliceError, match="in each of 8 tries") as caught:
        feed(served, [f"row {i}" for i in range(100)], engine__in_flight=20)
    assert caught.value.kind == "transient"
    assert len(served.requests) < 100 + 2 * client.TRIES


def test_rows_go_on_together_once_one_is_answered() -> None:
    """Also those that waited for that."""
    most = now = 0

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal most, now
        if number < 25:
            return error(504)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.2)
        now -= 1
        return completion(text_of(body))

    with endpoint(respond) as served:
        sink, _ = feed(served, [f"row {i}" for i in range(40)], engine__in_flight=20)
    assert len(sink.by_row) == 40
    assert most > 10


def test_replies_that_cost_nothing_are_not_charged() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(503 if number % 2 else 429) if number < 50 else completion("x", (20, 1))

    with endpoint(respond) as served:
        sink, _ = feed(
            served,
            ["a"] * 20,
            engine__token_budget=2_000,
            engine__in_flight=8,
            sampling_params={"max_tokens": 100},
        )
    assert len(sink.by_row) == 20


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": -5, "completion_tokens": 3},
     {"prompt_tokens": 2_000_000_000, "completion_tokens": 2_000_000_000},
     {"prompt_tokens": True, "completion_tokens": True}, {"prompt_tokens": "7", "completion_tokens": 3.5},
     {"prompt_tokens": 1 << 40, "completion_tokens": 3}, [7, 3]],
)  # fmt: skip
def test_counts_that_cannot_be_right_are_left_out_and_told_once(
    usage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And stop no other row, also of a slice with limits."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        reply = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}
        return web.json_response({**reply, "usage": usage} if number % 2 else reply)

    with endpoint(respond) as served:
        sink, left = feed(
            served,
            [f"row {i}" for i in range(40)],
            engine__token_budget=100_000,
            engine__tokens_per_minute=600_000,
            sampling_params={"max_tokens": 10},
        )
    assert (left, {answer["text"] for answer in sink.answers}) == ([], {"fine"})
    assert {answer["input_tokens"] for answer in sink.answers} == {None}
    assert [("tokens" in line) for line in caplog.messages] == [True]


def test_limit_of_the_endpoint_is_no_failed_try() -> None:
    """More refusals than a row has tries."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(429, **{"Retry-After": "0.01"}) if number < 12 else completion("x")

    with endpoint(respond) as served:
        sink, left = feed(served, ["a"])
    assert (left, sink.by_row[0]["text"]) == ([], "x")


@pytest.mark.parametrize("status", [429, 503])
def test_reply_that_repeats_a_row_is_in_no_log(status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(status, f"not now: {text_of(body)}") if number == 0 else completion("x")

    with endpoint(respond) as served:
        sink, left = feed(served, ["Jane Doe"])
    assert (left, sink.by_row[0]["text"]) == ([], "x")
    [line] = [line for line in caplog.messages if "asked again" in line]
    assert str(status) in line
    assert "Jane" not in line


def test_limit_that_ended_while_rows_waited_fails_none() -> None:
    """The endpoint asks for a longer pause than `limits.stall` has left."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(429, **{"Retry-After": "300"}) if 5 <= number < 15 else completion("x")

    with endpoint(respond) as served:
        sink, left = feed(served, [str(i) for i in range(40)], limits__stall=1.0, engine__in_flight=10)
    assert (left, {answer["text"] for answer in sink.answers}) == ([], {"x"})


def test_row_that_fails_and_then_is_over_the_limit_alone_ends_no_slice() -> None:
    tries = 0

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal tries
        if text_of(body) != "bad":
            return completion("x")
        tries += 1
        return error(500 if tries <= client.TRIES else 429)

    with endpoint(respond) as served:
        sink, left = feed(served, ["a", "bad", "b"], limits__stall=1.0)
    assert (left, sink.by_row[1]["error_type"]) == ([], "FailedAtEndpoint")


@pytest.mark.parametrize("message", ["Request too large for m on tokens per min (TPM)", "not now"])
def test_row_that_alone_is_over_the_limit_is_quarantined(message: str) -> None:
    """Whether the endpoint says so or not."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(429, message) if text_of(body).startswith("long") else completion("x")

    texts = ["a", *(f"long {i}" for i in range(5)), "b"]
    with endpoint(respond) as served:
        sink, left = feed(served, texts, limits__stall=1.0, engine__in_flight=4)
    assert (left, [sink.by_row[i]["text"] for i in (0, 6)]) == ([], ["x", "x"])
    failed = {sink.by_row[i]["error_type"] for i in range(1, 6)}
    assert failed == {"RefusedByEndpoint" if "large" in message else "FailedAtEndpoint"}


def test_row_whose_requests_hang_is_quarantined_before_the_slice_counts_as_stalled() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if text_of(body) == "hangs":
            await asyncio.sleep(60)
        return completion("x")

    began = time.monotonic()
    with endpoint(respond) as served:
        sink, left = feed(served, ["a", "hangs"], engine__request_timeout=0.3, limits__stall=1.5)
    assert (left, sink.by_row[1]["error_type"]) == ([], "FailedAtEndpoint")
    assert tries_of(served, "hangs") < client.TRIES
    assert time.monotonic() - began < 30


def test_endpoint_that_hangs_is_given_up_before_all_rows_have_waited_for_it() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if number >= 5:
            await asyncio.sleep(60)
        return completion("x")

    with endpoint(respond) as served, pytest.raises(SliceError, match=r"no whole reply within 0\.3 s"):
        feed(
            served,
            [str(i) for i in range(100)],
            engine__request_timeout=0.3,
            limits__stall=1.0,
            engine__in_flight=1,
        )
    assert len(served.requests) < 5 + 2 * client.TRIES


def test_answer_of_one_second_in_which_all_are_refused_ends_no_slice() -> None:
    """As by a firewall whose rules are read again."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return error(403) if 20 <= number < 40 else completion(text_of(body))

    texts = [f"row {i}" for i in range(60)]
    with endpoint(respond) as served:
        sink, left = feed(served, texts, engine__in_flight=8)
    assert (left, [sink.by_row[i]["text"] for i in range(60)]) == ([], texts)


@pytest.mark.parametrize("retry_after", ["0.1", "300"])
def test_limit_that_never_ends_ends_the_slice_before_its_stall(retry_after: str) -> None:
    """With what was answered meanwhile."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if number == 1:
            await asyncio.sleep(0.5)
        return (
            completion("x")
            if number < 2
            else error(429, f"none today, {KEY}", **{"Retry-After": retry_after})
        )

    began = time.monotonic()
    with endpoint(respond) as served, pytest.raises(SliceError, match=r"429.*none today") as caught:
        feed(served, [str(i) for i in range(40)], limits__stall=1.0, engine__in_flight=4)
    assert 1.3 < time.monotonic() - began < 60  # from the last answer on
    assert (caught.value.kind, KEY in str(caught.value)) == ("transient", False)
    assert "to every row for 0.9 s" in str(caught.value)
    assert caught.value.__notes__ == ["[0, 1]"]


def test_rate_limit_holds_for_all_rows() -> None:
    times: list[float] = []

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.2)
        return completion("x")

    with endpoint(respond) as served:
        feed(served, [str(i) for i in range(150)], engine__requests_per_minute=6000, engine__in_flight=100)
    made_up_s = 0.6  # of what a busy machine is late
    assert times[-1] - times[0] > 149 / 100 - made_up_s - 0.1


def test_vectors_and_a_lone_row_without_one() -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        text = text_of(body)
        return error(500) if text == "poison" else embedding([3.0, float(len(text))])

    with endpoint(respond) as served:
        sink, left = feed(served, ["abcd", "poison", ""], task="embed", sampling_params={})
    assert left == []
    assert sink.by_row[0]["numbers"] == pytest.approx([0.6, 0.8])
    assert sink.by_row[1]["error_type"] == "FailedAtEndpoint"
    assert sink.by_row[2]["numbers"] == [1, 0]
    assert (sink.by_row[0]["text"], sink.by_row[0]["input_tokens"]) == (None, 7)
