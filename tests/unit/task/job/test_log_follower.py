from __future__ import annotations

import logging

from airflow_provider_raydatallm.task.job.log_entries import LogEntry
from airflow_provider_raydatallm.task.job.log_follower import LineSplitter, Throttle


def entries(*texts: str) -> list[LogEntry]:
    return [LogEntry(logging.INFO, text) for text in texts]


def test_lines_do_not_depend_on_the_chunks() -> None:
    whole = "eins\nzwei ünd\n\ndrei".encode()
    for cut in range(len(whole)):
        lines = LineSplitter()
        assert lines.feed(whole[:cut]) + lines.feed(whole[cut:]) == ["eins", "zwei ünd", ""]
    assert lines.feed(b"!\n") == ["drei!"]


def test_endless_line_takes_bounded_memory() -> None:
    lines = LineSplitter()
    for _ in range(100):
        assert lines.feed(b"x" * 100_000) == []
        assert len(lines._rest) <= 128 * 1024
    (line,) = lines.feed(b"\n")
    assert len(line) == 128 * 1024


def test_flood_is_limited_and_omitted_lines_are_counted() -> None:
    throttle = Throttle()
    first = throttle.limit(entries(*map(str, range(1000))), now=0.0)
    assert first == entries(*map(str, range(400)))
    assert throttle.limit(entries("more"), now=0.0) == []
    omitted = "(601 lines omitted; see the Ray job's log)"
    assert throttle.limit(entries("a", "b"), now=10.0) == entries(omitted, "a", "b")
