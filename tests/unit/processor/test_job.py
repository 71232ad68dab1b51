"""A job's own output holds none of the secrets in its environment."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_provider_raydatallm.contract.log.marked_lines import decode_line, encode_line
from airflow_provider_raydatallm.contract.log.redaction import Redactor
from airflow_provider_raydatallm.processor.job import RedactedStream

SECRET = "wJalr/XUtnFEMI+K7MDENG=bPxRfiCY"


def test_lines_are_redacted_also_when_they_are_written_in_parts() -> None:
    written = io.StringIO()
    stream = RedactedStream(written, Redactor([SECRET]))
    print("a token:", SECRET[:9], end="", file=stream)
    print(SECRET[9:], "and more\nnext", file=stream)
    assert written.getvalue() == "a token: *** and more\nnext\n"
    print(SECRET, end="", file=stream, flush=True)
    assert written.getvalue().endswith("next\n***")


def test_private_key_that_is_printed_line_by_line_is_masked_and_no_other_line() -> None:
    written = io.StringIO()
    stream = RedactedStream(written, Redactor([]))
    key = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQ", "-----END PRIVATE KEY-----"]
    report = encode_line("report", "n1", {"rows": 3})
    print(*key, "a line", key[0], report, "MIIEvQIBADANBgkqhkiG9w0BAQ", sep="\n", file=stream)
    assert written.getvalue().splitlines() == [*["***"] * 3, "a line", "***", report, key[1]]


def test_marked_lines_stay_whole_and_others_are_left_as_they_are() -> None:
    written = io.StringIO()
    stream = RedactedStream(written, Redactor([SECRET]))
    clean = encode_line("progress", "n1", {"rows": 3})
    stream.writelines([f"{encode_line('error', 'n1', {'root': f'no: {SECRET}'})}\n", f"{clean}\n"])
    stream.write(f"@ray-llm {SECRET}\n@ray-llm error n1 3 abc {SECRET}\n")
    error, progress, *damaged = written.getvalue().splitlines()
    assert decode_line(error, "n1") == ("error", {"root": "no: ***"})
    assert progress == clean
    assert damaged == ["@ray-llm ***", "@ray-llm error n1 3 abc ***"]


@pytest.mark.slow
def test_failed_job_names_no_secret_of_its_environment(tmp_path: Path) -> None:
    """The whole process: its marked line, its error and its traceback."""
    (tmp_path / "token").write_text("ray-sesame-2\n")
    spec = tmp_path / quote(SECRET, safe="") / "hub-sesame-1" / "ray-sesame-2.json"
    program = "airflow_provider_raydatallm.processor.job"
    command = [sys.executable, "-m", program, "status", str(spec), "--nonce", "n"]
    secrets = {
        "AWS_SECRET_ACCESS_KEY": SECRET, "HF_TOKEN": "hub-sesame-1",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
    }  # fmt: skip
    job = subprocess.run(command, env={**os.environ, **secrets}, capture_output=True, text=True)
    assert job.returncode == 1
    message = next(filter(None, (decode_line(line, "n") for line in job.stdout.splitlines())))
    assert f"cannot read the spec {tmp_path}/***/***/***.json" in str(message)
    assert f"cannot read the spec {tmp_path}/***/***/***.json" in job.stderr
    for secret in (SECRET, quote(SECRET, safe=""), "hub-sesame-1", "ray-sesame-2"):
        assert secret not in job.stdout + job.stderr
