"""The Jobs API's flows, stepped by hand with real HTTP answers; the integration tests run the same flows
against a real Ray."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from airflow_provider_raydatallm.exceptions import (
    RayClusterUnfitError,
    RayConnectionError,
    RayUnreachableError,
)
from airflow_provider_raydatallm.hooks import jobs_api
from airflow_provider_raydatallm.hooks.jobs_api import Backoff, HttpRequest, ListedJob

DOWN = httpx.ConnectError("refused")


def answer(status: int, body: Any = "") -> httpx.Response:
    return httpx.Response(status, text=body if isinstance(body, str) else json.dumps(body))


def step(flow: Any, *answers: httpx.Response | httpx.TransportError) -> tuple[Any, list[HttpRequest]]:
    """Run a flow to its end with these answers; returns its result and what it sent. Pauses cost no time
    here."""
    sent: list[HttpRequest] = []
    todo, reply = list(answers), None
    try:
        while True:
            asked = flow.send(reply)
            if isinstance(asked, Backoff):
                reply = None
            else:
                sent.append(asked)
                reply = todo.pop(0)
    except StopIteration as end:
        assert not todo
        return end.value, sent


SUBMISSION: dict[str, Any] = {"submission_id": "id-1", "entrypoint": "e", "runtime_env": {}, "metadata": {}}


def test_too_old_ray_is_refused() -> None:
    assert step(jobs_api.get_version(), answer(200, {"ray_version": "2.60.0"}))[0] == "2.60.0"
    with pytest.raises(RayClusterUnfitError, match=r"runs Ray 2\.40\.0.*at least 2\.58"):
        step(jobs_api.get_version(), answer(200, {"ray_version": "2.40.0"}))


#: As Ray 2.60 words it.
REFUSED_REQUEST = "Traceback (most recent call last):\n  File ...\nTypeError: metadata must be a dict"


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (401, "Unauthorized: Missing authentication token", "refuses the token"),
        (403, "Forbidden: Invalid authentication token", "password"),
        (400, REFUSED_REQUEST, "refuses the request: HTTP 400: TypeError: metadata must be a dict"),
    ],
)
def test_refusal_of_ray_itself_is_final(status: int, text: str, says: str) -> None:
    with pytest.raises(RayConnectionError, match=says):
        step(jobs_api.get_version(), answer(status, text))


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (200, "<html>hello", "HTTP 200: <html>hello"), (200, "hello", "does not speak the Ray Jobs API"),
        (302, "", "redirects"),
        (403, "<html>no", "403"), (404, "default backend - 404", "404"), (409, "in maintenance", "409"),
        (401, "Unauthorized", "HTTP 401: Un"), (403, "RBAC: access denied", "HTTP 403: RBAC"),
        (400, "Bad Request", "HTTP 400: Bad"), (400, "\n<!doctype html>", "400"),
        (404, "", r"HTTP 404\. Is this the address of the cluster's dashboard"),
    ],
)  # fmt: skip
def test_something_else_at_the_address_may_be_ray_again(status: int, text: str, says: str) -> None:
    with pytest.raises(RayUnreachableError, match=says):
        step(jobs_api.get_version(), answer(status, text))


def test_page_in_place_of_an_answer_is_no_submission() -> None:
    unknown = answer(404, "Job id-1 does not exist")
    with pytest.raises(RayUnreachableError, match="HTTP 200: <html>hello"):
        step(jobs_api.submit(**SUBMISSION), answer(200, "<html>hello"), unknown)


def test_fresh_head_is_waited_for_and_a_dead_one_is_not_for_ever() -> None:
    assert (
        step(jobs_api.get_version(), answer(429, "slow down"), answer(200, {"ray_version": "2.60.0"}))[0]
        == "2.60.0"
    )
    fresh = answer(500, "No available agent to submit job")
    assert step(jobs_api.get_version(), DOWN, fresh, answer(200, {"ray_version": "2.60.0"}))[0] == "2.60.0"
    with pytest.raises(RayUnreachableError, match="refused"):
        step(jobs_api.get_version(), *[DOWN] * 6)


def test_submission_that_was_taken_is_never_sent_again() -> None:
    gone = answer(404, "Job id-1 does not exist")
    lost = httpx.ReadTimeout("no answer")
    assert [
        s.method for s in step(jobs_api.submit(**SUBMISSION), answer(200, {"submission_id": "id-1"}))[1]
    ] == ["POST"]
    # The answer was lost, the job is there.
    result, sent = step(jobs_api.submit(**SUBMISSION), lost, answer(200, {"status": "PENDING"}))
    assert (result, [s.method for s in sent]) == ("id-1", ["POST", "GET"])
    # It is not there: sent again.
    result, sent = step(
        jobs_api.submit(**SUBMISSION), answer(500, "No available agent"), gone, answer(200, {})
    )
    assert [s.method for s in sent] == ["POST", "GET", "POST"]
    # An earlier try was taken after all.
    there, exists = answer(200, {"status": "RUNNING"}), answer(500, "... id-1 already exists ...")
    assert step(jobs_api.submit(**SUBMISSION), lost, gone, exists, there)[0] == "id-1"
    with pytest.raises(RayUnreachableError, match="POST /api/jobs/ failed 6 times: HTTP 503: down"):
        step(jobs_api.submit(**SUBMISSION), *[answer(503, "down"), gone] * 6)
    with pytest.raises(RayConnectionError, match="refuses the request: HTTP 400: TypeError"):
        step(jobs_api.submit(**SUBMISSION), answer(400, REFUSED_REQUEST))
    with pytest.raises(RayUnreachableError, match="POST /api/jobs/: HTTP 409: in maintenance"):
        step(jobs_api.submit(**SUBMISSION), answer(409, "in maintenance"), gone)


def test_package_is_uploaded_once() -> None:
    assert [s.method for s in step(jobs_api.upload_package("p.zip", b"x"), answer(200))[1]] == ["GET"]
    gone = answer(404, "Package gcs://p.zip does not exist")
    uri, sent = step(jobs_api.upload_package("p.zip", b"x"), gone, answer(200))
    assert (uri, [s.method for s in sent]) == ("gcs://p.zip", ["GET", "PUT"])


@pytest.mark.parametrize(
    "reply", [answer(200, "<html>soon back"), answer(404, "no route"), answer(404, "<h1>p does not exist")]
)
def test_page_of_a_proxy_says_nothing_of_a_package_or_a_job(reply: httpx.Response) -> None:
    """Neither that the package is there, nor that the job is over or unknown."""
    for flow in (jobs_api.upload_package("p", b"x"), jobs_api.stop("p"), jobs_api.get_status("p")):
        with pytest.raises(RayUnreachableError):
            step(flow, reply)


def test_unknown_job_is_none() -> None:
    assert step(jobs_api.get_status("x"), answer(404, "Job x does not exist"))[0] is None
    with pytest.raises(
        RayUnreachableError, match="404: default backend"
    ):  # a proxy's word, not the cluster's
        step(jobs_api.get_status("x"), answer(404, "default backend"))
    info = step(jobs_api.get_status("x"), answer(200, {"status": "RUNNING", "start_time": 1500}))[0]
    assert (info.status, info.started_at, info.message) == ("RUNNING", 1.5, "")


def test_driver_gets_the_resources_that_the_connection_names_and_else_stays_on_the_head() -> None:
    resources = {"memory": 500_000_000, "label_selector": {"pool": "drivers"}}
    for given, reserved in (
        ({}, {}),
        (resources, {"entrypoint_memory": 500_000_000, "entrypoint_label_selector": {"pool": "drivers"}}),
    ):
        _, [request] = step(jobs_api.submit(**SUBMISSION, driver_resources=given), answer(200, {}))
        assert {n: v for n, v in request.json.items() if n.startswith("entrypoint_")} == reserved


def test_only_live_jobs_are_listed() -> None:
    jobs = [{"status": "PENDING", "metadata": {"a": "1"}}, {"status": "RUNNING", "metadata": None}]
    ended = {"status": "STOPPED", "metadata": {"a": "2"}}
    body = {"data": {"result": {"result": [*jobs, ended]}}}
    live, [request] = step(jobs_api.list_live_jobs(), answer(200, body))
    assert live.metadata == [{"a": "1"}, {}]
    assert all(f"filter_values={status}" in request.path for status in jobs_api.TERMINAL)


def test_all_submitted_jobs_are_listed() -> None:
    jobs = [
        {"submission_id": "a", "status": "RUNNING", "metadata": {"k": "v"}, "start_time": 1500},
        {"submission_id": "b", "status": "FAILED", "metadata": None, "start_time": None},
        {"submission_id": None, "status": "RUNNING", "metadata": {}},  # a driver that nobody submitted
    ]
    listed = [ListedJob("a", "RUNNING", {"k": "v"}, 1.5), ListedJob("b", "FAILED", {})]
    assert step(jobs_api.list_jobs(), answer(200, jobs))[0] == listed
    with pytest.raises(RayUnreachableError, match="does not speak the Ray Jobs API"):
        step(jobs_api.list_jobs(), answer(200, {"message": "soon back"}))
