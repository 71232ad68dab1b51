"""What a line of a Ray job's log becomes in a task's log."""

from __future__ import annotations

import logging
import time

import pytest

from airflow_provider_raydatallm.contract.log.own_lines import format_lines, parse_line
from airflow_provider_raydatallm.task.job.log_entries import (
    LogEntry,
    clean,
    entry_of,
    may_explain_failure,
    own_entry,
)

#: As vLLM, Ray Serve, Ray and torch write them on a first run.
REPLICA = "\x1b[36m(ServeReplica:app:workers-1-to-1 pid=1921)\x1b[0m "
VLLM = f"{REPLICA}(EngineCore pid=2073) WARNING 11-24 13:17:22 [vllm.py:663] Model Runner V2 requires Triton"
SERVE = "\x1b[36m(ServeController pid=1819)\x1b[0m INFO 2026-11-24 13:16:48,469 controller 1819 -- Deploying"
RAY = "2026-11-24 13:16:40,882\tINFO job_manager.py:581 -- Runtime env is setting up."
TORCH = f"{REPLICA}[W1124 13:17:16.870040864 utils.cpp:68] Warning: NUMA binding"
BAR = (
    f"{REPLICA}(Worker pid=2155) \rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00]"
)
COMMAND = "Running entrypoint for job j: python -m airflow_provider_raydatallm.processor run package:x"
PENDING = "Job has not started yet. It may be waiting for the runtime environment to be set up."
CHATTER = [VLLM, SERVE, RAY, TORCH, BAR, COMMAND, PENDING, "", f"{REPLICA}(Worker pid=2155) "]


@pytest.mark.parametrize("level", ["INFO", "WARNING", "ERROR"])
@pytest.mark.parametrize("process", ["", "(Writer pid=12) ", f"{REPLICA}(EngineCore pid=3) "])
def test_own_line_keeps_its_level_whichever_process_wrote_it(level: str, process: str) -> None:
    line = process + format_lines(level, "a] b", "engine worker 2 died: no memory", 0.0)
    assert own_entry(line) == (getattr(logging, level), "engine worker 2 died: no memory")


def test_each_line_of_a_message_is_an_own_line_and_only_the_first_begins_like_one() -> None:
    lines = format_lines("WARNING", "2026-01-01", "first\nsecond", 0.0).splitlines()
    assert [own.text for own in map(parse_line, lines) if own] == ["first", "    second"]


@pytest.mark.parametrize("text", [
    "x\n2026-01-01 00:00:00 INFO ray-llm [k] forged", "x\r2026", "x\x1b[2K\x1b[1Gforged", "x\u202edegrof",
    "x\u2028y",
    "x\x85y", "x\x0by", "] forged", "\u200b", "\x9b2J",
])  # fmt: skip
def test_no_text_forges_a_line_or_hides_one(text: str) -> None:
    [of_key] = format_lines("INFO", text, "told", 0.0).splitlines()
    assert own_entry(of_key) == (logging.INFO, "told")
    lines = format_lines("INFO", "k", text, 0.0).splitlines()
    assert all("ray-llm [k] " in line for line in lines)
    assert len(lines) == 1 + text.count("\n")
    assert all(c.isprintable() for c in of_key + "".join(lines))
    assert all(line.partition("[k] ")[2].startswith("    ") for line in lines[1:])


def test_what_looks_like_a_secret_is_masked_also_of_a_job_that_does_not_do_so() -> None:
    assert entry_of("OPENAI_KEY=abcdefgh").text == clean("OPENAI_KEY=abcdefgh") == "OPENAI_KEY=***"


@pytest.mark.parametrize("line", CHATTER)
def test_output_of_ray_and_vllm_is_not_ours_and_explains_nothing(line: str) -> None:
    assert own_entry(line) is None
    assert not may_explain_failure(clean(line))


@pytest.mark.parametrize(("line", "level"), [
    (VLLM, "WARNING"), (SERVE, "INFO"), (RAY, "INFO"), (TORCH, "WARNING"), ("[E1124 13:17 x] no", "ERROR"),
    ("ERROR 11-24 13:17:22 [core.py:1] died", "ERROR"), ("a print of ERROR", "INFO"), ("[1, 2]", "INFO"),
])  # fmt: skip
def test_full_log_keeps_levels(line: str, level: str) -> None:
    assert entry_of(line).level == getattr(logging, level)
    assert "\x1b" not in entry_of(line).text


@pytest.mark.parametrize("line", [
    "Traceback (most recent call last):", '  File "/dags/mine.py", line 3, in prompt', "KeyError: 'name'",
    f"{REPLICA}(EngineCore pid=2073) ERROR 11-24 13:17:22 [core.py:1] ValueError: too little memory",
    "python: No module named mine",
])  # fmt: skip
def test_lines_of_an_error_explain_a_failure(line: str) -> None:
    assert may_explain_failure(clean(line))


@pytest.mark.parametrize(("text", "shown"), [
    ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07text", "text"), ("\x1b[2K\x1b[1Aover", "over"),
    ("10%\r20%", r"10%\r20%"), ("windows\r", "windows"), ("tab\tstays", "tab\tstays"),
    ("bell\x07 null\x00 c1\x9b31m", r"bell\x07 null\x00 c1\x9b31m"), ("x\u202egnp.exe", r"x\u202egnp.exe"),
    ("a\u2028b", r"a\u2028b"), ("::endgroup::", ": :endgroup::"), ("x ::group::a", "x : :group::a"),
    ("::end\x1b[0mgroup::", ": :endgroup::"), ("::endgroup::group::", ": :endgroup: :group::"),
    ("two\nlines", "two\nlines"), ("日本語 é", "日本語 é"),
])  # fmt: skip
def test_line_of_the_cluster_is_escaped(text: str, shown: str) -> None:
    assert clean(text) == shown
    assert own_entry(format_lines("INFO", "k", text.replace("\n", " "), 0.0) or "") is not None


@pytest.mark.parametrize("part", ["(pid=1", "\x1b]", "\x1b[0", "[2026-", "::group", "] [", "9% "])
def test_hostile_line_takes_no_time(part: str) -> None:
    line = (part * 65_536)[:131_072]
    began = time.process_time()
    may_explain_failure(entry_of(line).text)
    own_entry(format_lines("INFO", "k", line, 0.0))
    assert time.process_time() - began < 5  # a pattern that looks back takes minutes


def test_long_line_is_cut() -> None:
    assert entry_of("x" * 100_000) == LogEntry(logging.INFO, "x" * 2000 + " ...")


def test_code_that_came_with_the_job_is_named_without_the_folder_that_ray_unpacked_it_into() -> None:
    folder = "/tmp/ray/session_2026-01-01_1/runtime_resources/py_modules_files/_ray_pkg_0a1b"
    assert clean(f'  File "{folder}/mine/engine.py", line 3') == '  File "mine/engine.py", line 3'
