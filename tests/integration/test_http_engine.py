"""Slices that an endpoint answers: vLLM's own server on loopback, behind a proxy with faults."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError, RayModelNotFoundError
from airflow_provider_raydatallm.processor.ask_again import ask_again_for_people
from airflow_provider_raydatallm.task import hold
from demo.customers import LABELS
from tests.support.certificates import Authority
from tests.support.endpoint import Endpoint, Trickle, completion, endpoint, error, proxy, text_of
from tests.support.engine_processes import processes
from tests.support.hostile import CELLS, texts
from tests.support.slices import Ask, fragments, rows_in
from tests.support.vllm_server import NAME, vllm_server

KEY = "sk-of-the-endpoint"
ROWS = 300
#: Tokens that the server takes.
LIMIT = 256
PROMPT = "What industry is this company in: {name}"


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[str]:
    with vllm_server(tiny_model, LIMIT) as url:
        yield url


@pytest.fixture(autouse=True)
def _connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ENDPOINT", f"http://:{KEY}@127.0.0.1")


def arguments(served: Endpoint, folder: Path, names: Any, **engine: Any) -> dict[str, Any]:
    pq.write_table(pa.table({"name": names}), folder / "in.parquet")
    return {
        "input_path": f"{folder}/in.parquet",
        "prompt": PROMPT,
        "model_source": NAME,
        "model_conn_id": "endpoint",
        "engine": {"kind": "http", "url": served.url, **engine},
        "sampling_params": {"temperature": 0, "max_tokens": 24},
        "poll_interval": 1.0,
    }


def rows_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(result["output_path"], partitioning=None).to_pylist()
    return rows


@pytest.mark.long
def test_faults_lose_no_row_and_bad_rows_stop_no_other(ask: Ask, server: str, tmp_path: Path) -> None:
    """A tenth of the rows meets a fault: a limit, an error, a hang, a broken or foreign or slow reply."""
    seen: Counter[str] = Counter()
    faults: Counter[int] = Counter()

    async def fault(number: int, body: dict[str, Any]) -> web.StreamResponse | None:
        text = text_of(body)
        seen[text] += 1
        if seen[text] > 1 or number % 10:
            return None
        kind = number // 10 % 6
        faults[kind] += 1
        match kind:
            case 0:
                return error(429, **{"Retry-After": "1"})
            case 1:
                return error(500)
            case 2:
                await asyncio.sleep(20)
            case 3:
                return web.Response(text='{"choices": [{"mess')
            case 4:
                return web.Response(text="<html>busy</html>", content_type="text/html")
        return Trickle(seconds=20)

    cells = [*CELLS, *CELLS]
    good = [f"Dental {i % 250}" for i in range(ROWS)]
    limits = {"in_flight": 32, "request_timeout": "15s", "requests_per_minute": 6000}
    with proxy(server, fault) as served:
        names = texts([*(name.encode() for name in good), *(cell.text for cell in cells)])
        given = arguments(served, tmp_path, names, **limits)
        result = ask(**given, choices=list(LABELS))
    counts = result["counts"]
    fails_as = [cell.fails_as for cell in cells if cell.fails_as]
    assert (counts["succeeded"], counts["quarantined"]) == (len(names) - len(fails_as), len(fails_as))
    rows = rows_of(result)
    assert [row["name"] for row in rows[:ROWS]] == good
    assert {row["answer"] for row in rows} <= set(LABELS)
    asked = [row["name"] or "" for row in rows]
    assert counts["deduplicated"] == len(asked) - len(set(asked))
    assert (result["tokens"]["input"] > 10 * ROWS, result["tokens"]["output"] > ROWS) == (True, True)
    columns = ["__row", "__error_type"]
    bad = pq.read_table(f"{tmp_path}/out.quarantine", columns=columns, partitioning=None).to_pylist()
    assert [row["__error_type"] for row in sorted(bad, key=lambda row: row["__row"])] == fails_as
    # The rows with a fault were asked once more, and no others, but for a reply that a busy machine had late.
    assert len(faults) == 6
    assert 0 <= seen.total() - len(seen) - faults.total() <= 5
    assert {headers.get("Authorization") for headers, _ in served.requests} == {f"Bearer {KEY}"}
    for file in (tmp_path / "out.ray_llm").rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes()

    # The slice is published: the endpoint, which is gone, is not asked.
    again = ask(**given, choices=list(LABELS))
    assert (again["outcome"], again["fingerprint"]) == ("unchanged", result["fingerprint"])


@pytest.mark.long
def test_schema_is_followed_and_a_retry_continues(ask: Ask, server: str, tmp_path: Path) -> None:
    """The first run is refused its key after 100 answers: they are kept, and not asked again."""
    schema = {
        "type": "object", "properties": {"industry": {"enum": list(LABELS)}}, "required": ["industry"],
        "additionalProperties": False,
    }  # fmt: skip
    is_refused = True

    async def fault(number: int, body: dict[str, Any]) -> web.StreamResponse | None:
        return error(401, f"the key {KEY} is not valid") if is_refused and number >= 100 else None

    names = [f"Dental {i}" for i in range(ROWS)]
    with proxy(server, fault) as served:
        given = arguments(served, tmp_path, names, in_flight=8, deduplicate=False)
        with pytest.raises(RayLLMInputError, match="check the password of the connection") as caught:
            ask(**given, output_schema=schema)
        assert KEY not in str(caught.value)
        asked, is_refused = len(served.requests), False
        assert asked <= ROWS + 2 * 8  # those at hand once, and one row again
        result = ask(**given, output_schema=schema)
    assert (result["counts"]["succeeded"], result["counts"]["resumed"]) == (ROWS, 100)
    assert len(served.requests) == asked + ROWS - 100
    rows = rows_of(result)
    assert [row["name"] for row in rows] == names
    assert all(row["answer"]["industry"] in LABELS for row in rows)


@pytest.mark.long
def test_wrong_model_and_redirect_say_what_to_check(ask: Ask, server: str, tmp_path: Path) -> None:
    async def fault(number: int, body: dict[str, Any]) -> web.StreamResponse | None:
        return None

    with proxy(server, fault) as served:
        with pytest.raises(RayModelNotFoundError, match=r"check model_source and engine\.url"):
            ask(**{**arguments(served, tmp_path, ["a"]), "model_source": "another"})

        async def redirect(number: int, body: dict[str, Any]) -> web.StreamResponse | None:
            return web.Response(status=308, headers={"Location": f"{served.url}/chat/completions"})

        before = len(served.requests)
        with proxy(server, redirect) as moved, pytest.raises(RayLLMInputError, match="not followed"):
            ask(**arguments(moved, tmp_path, ["a"]))
        assert len(served.requests) == before


@pytest.mark.long
def test_conversations_have_several_answers_with_their_probabilities(
    ask: Ask, server: str, tmp_path: Path
) -> None:
    async def fault(number: int, body: dict[str, Any]) -> web.StreamResponse | None:
        return None

    talks = [
        json.dumps([{"role": "user", "content": PROMPT.format(name=name)}]) for name in ("Acme Bank", "")
    ]
    with proxy(server, fault) as served:
        given = arguments(served, tmp_path, [*talks, "{"])
        sampling = {"n": 2, "temperature": 1, "max_tokens": 8}
        result = ask(**{**given, "prompt": None, "sampling_params": sampling}, messages="name", logprobs=True,
                     quality__max_quarantine=0.5)  # fmt: skip
    rows = rows_of(result)
    assert [row["name"] for row in rows] == talks
    for row in rows:
        assert len(row["answer"]) == 2
        assert all(p < 0 for p in row["answer_logprob"])
    tokens = sum(sum(row["answer_logprob_tokens"]) for row in rows)
    assert tokens == result["tokens"]["output"]


@pytest.mark.long
def test_slice_of_many_rows_goes_through_ray_data(ask: Ask, tmp_path: Path) -> None:
    """With an answer cache, which then answers another slice."""

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion(json.dumps(text_of(body)))

    names = [f"n{i}" for i in range(6000)]
    with endpoint(respond) as served:
        given = arguments(served, tmp_path, names, in_flight=200, cache=f"{tmp_path}/cache")
        result = ask(**given)
        assert (result["counts"]["succeeded"], len(served.requests)) == (6000, 6000)
        other = ask(**given, slice_key="2026-02-01")
    assert (other["counts"]["succeeded"], other["counts"]["cached"]) == (6000, 6000)
    assert len(served.requests) == 6000
    assert [row["answer"] for row in rows_of(other)] == [json.dumps(PROMPT.format(name=n)) for n in names]


def test_rows_that_are_asked_again_get_no_answer_of_the_cache_or_of_the_rejected_version(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is that of two rows, and is asked once."""
    asked: Counter[str] = Counter()
    waiting: list[hold.HeldSlice] = []

    def wait(context: Any, held: hold.HeldSlice, **page: str) -> None:
        waiting.append(held)
        raise AirflowSkipException

    monkeypatch.setattr(hold, "ask", wait)

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        asked[text_of(body)] += 1
        return completion(f"{text_of(body)}, asked {asked[text_of(body)]}")

    names = [f"n{i % 5}" for i in range(10)]
    with endpoint(respond) as served:
        given = arguments(served, tmp_path, names, cache=f"{tmp_path}/cache")
        with pytest.raises(AirflowSkipException):
            ask(**given, quality={"gates": [{"of": "rows", "then": "hold"}]})
        [held] = waiting
        assert ask_again_for_people(held.job.address, held.staged, "name = 'n3'") == (held.staged, 2)
        result = ask(**given)
        other = ask(**given, slice_key="2026-02-01")
    wanted = [f"{PROMPT.format(name=n)}, asked {2 if n == 'n3' else 1}" for n in names]
    for published in (result, other):  # from now on the cache has the newer answer
        assert [row["answer"] for row in rows_of(published)] == wanted
    assert len(served.requests) == 6
    assert other["counts"]["cached"] == 10


def test_answers_that_golden_rows_speak_against_answer_no_other_slice(ask: Ask, tmp_path: Path) -> None:
    says = ["broken"]

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion(says[0])

    (tmp_path / "golden.jsonl").write_text(json.dumps({"name": "g", "answer": "good"}) + "\n")
    quality = {"golden": {"path": f"{tmp_path}/golden.jsonl"}, "gates": [{"of": "golden", "min": 1}]}
    with endpoint(respond) as served:
        given = arguments(served, tmp_path, ["a", "b"], cache=f"{tmp_path}/cache") | {"quality": quality}
        with pytest.raises(RayLLMInputError, match="golden is 0"):
            ask(**given)
        says[0] = "good"
        other = ask(**given, slice_key="2026-02-01")
    assert [row["answer"] for row in rows_of(other)] == ["good", "good"]
    assert other["counts"]["cached"] == 0


@pytest.mark.parametrize(
    ("rows", "process"),
    [(1500, "ray::SliceProcess"), pytest.param(4200, "ray::FeederProcess", marks=pytest.mark.long)],
)
def test_process_that_asks_is_killed_and_no_row_is_lost_or_published_twice(
    ask: Ask, ray_head: LocalHead, tmp_path: Path, rows: int, process: str
) -> None:
    """In both ways in which a slice runs. What was written is not asked again."""
    at_kill: list[tuple[int, int]] = []
    in_flight = 50

    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        if not at_kill and number > rows // 2 and (kept := rows_in(fragments(tmp_path / "out"))):
            at_kill.append((number, kept))
            [asking] = processes(ray_head, process)
            asking.kill()
        await asyncio.sleep(0.1)
        return completion(text_of(body).upper())

    names = [f"n{i}" for i in range(rows)]
    with endpoint(respond) as served:
        result = ask(**arguments(served, tmp_path, names, in_flight=in_flight))
    [(asked, kept)] = at_kill
    assert (result["counts"]["succeeded"], result["counts"]["quarantined"]) == (rows, 0)
    published = rows_of(result)
    assert [row["name"] for row in published] == names
    assert [row["answer"] for row in published] == [PROMPT.format(name=n).upper() for n in names]
    assert len(served.requests) <= rows + asked + in_flight - kept


@pytest.mark.long
def test_limit_that_never_ends_ends_the_slice_and_is_named(ask: Ask, tmp_path: Path) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion("x") if number < 3 else error(429, "quota of the day", **{"Retry-After": "1"})

    with endpoint(respond) as served:
        given = arguments(served, tmp_path, [f"n{i}" for i in range(40)], in_flight=4)
        with pytest.raises(RayLLMJobError, match=r"^the endpoint answered 429: quota of the day, and to"):
            ask(**given, limits__stall="12s")
    assert rows_in(fragments(tmp_path / "out")) == 3


@pytest.mark.long
def test_private_authority_is_trusted_where_the_nodes_know_it(ask: Ask, tmp_path: Path) -> None:
    async def respond(number: int, body: dict[str, Any]) -> web.StreamResponse:
        return completion("over TLS")

    authority = Authority(tmp_path)
    with endpoint(respond, authority.issue("endpoint")) as served:
        given = arguments(served, tmp_path, ["a"])
        with pytest.raises(RayLLMInputError, match=r"not trusted.*SSL_CERT_FILE"):
            ask(**given)
        assert served.requests == []
        trusting = {"env_vars": {"SSL_CERT_FILE": str(authority.ca_file)}}
        assert rows_of(ask(**given, runtime_env=trusting)) == [{"name": "a", "answer": "over TLS"}]
