"""Whoever can write into a table's metadata, and whoever writes its rows, prints no line of their own and
commands no terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.cli.main import main
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.slice_run import stage_slice
from airflow_provider_raydatallm.processor.storage import documents
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.staged_versions import document_name, staged_names
from tests.support.in_process import InProcess, changed, job_of, run_in_process
from tests.support.slice_files import folders_of, metadata
from tests.support.table_commands import Out, of_day, write_progress

TEXT = "\x1b[31mred\nforged\r\u202e"
#: Of commands, whether they have something of it to print.
TABLE = {
    "slices": True, "show 2026-01-31": True, "sample 2026-01-31": True, "watch 2026-01-31": True,
    "sample 2026-01-31 --quarantined": True, "diff 2026-01-31@2 2026-01-31@3": True,
    "missing --from 2026-01-30 --to 2026-01-31": True, "show 2026-01-30": True, "show 2026-01-29": True,
}  # fmt: skip
SPEC = {
    "versions": True, "status": True, "files": True, "plan": True, "commit": True, "commit none": True,
    "commit SECOND": True, "discard": True, "discard none": True, "restore 9": True, "gc --days 0": True,
    "commit FIRST": False, "discard FIRST": True, "restore 2": False,
}  # fmt: skip


@pytest.fixture
def forged(tmp_path: Path) -> SliceJob:
    """Of three versions, two staged ones and two runs' progress, others wrote the texts; another slice cannot
    be read."""
    folder = tmp_path / TEXT
    folder.mkdir()
    pq.write_table(pa.table({"name": [TEXT, "fail\x1b[31mred"], TEXT: [TEXT, "b"]}), folder / "in.parquet")
    job = job_of(
        input_path=f"{folder}/in.parquet", output_path=f"{folder}/out", quality__max_quarantine=1,
        rerun__on_config_change="recompute", publish__keep_versions=5,
    )  # fmt: skip
    for prompt in ("{name}", "{name} 2", "{name} 3"):
        run_in_process(changed(job, prompt=prompt))
    store = folders_of(job).metadata
    for number in (2, 3):
        body = store.read_document(versions.commit_name(number))
        forge(store.path(versions.commit_name(number)), {**body, **said(body, number)})
    for complete in metadata(job).glob("commits/complete-*"):
        complete.unlink()
    for prompt in ("{name} 4", "{name} 5"):
        stage_slice(changed(job, prompt=prompt), lambda progress: None, InProcess())
    for number, name in enumerate(staged_names(store)):
        path = store.path(document_name(name))
        document = json.loads(Path(path).read_text())["body"]
        commit = {**document["commit"], **said(document["commit"], number), "slice_key": job.slice_key}
        del commit["published_at"]  # which only a commit says
        table = {"table": f"/elsewhere/{TEXT}"} if number else {}
        forge(path, {**document, "staged_at": TEXT, "commit": commit, **table})
    for day in ("2026-01-29", "2026-01-31"):
        write_progress(of_day(job, day), 3600, step=TEXT)
    unreadable = metadata(of_day(job, "2026-01-30")) / "commits"
    unreadable.mkdir(parents=True)
    (unreadable / "commit-000001.json").write_text("{")
    return job


def test_versions_lists_what_says_little(forged: SliceJob, tmp_path: Path, capsys: Out) -> None:
    """Neither when it was published, nor of which model and how many rows."""
    store = folders_of(forged).metadata
    spec = tmp_path / "spec.json"
    spec.write_text(forged.model_dump_json())
    [first, _] = staged_names(store)
    for name in (versions.commit_name(3), document_name(first)):
        path = store.path(name)
        body = json.loads(Path(path).read_text())["body"]
        commit = body.get("commit", body)
        commit["report"]["counts"] = {}
        commit.pop("model_source")
        commit.pop("published_at", None)
        forge(path, body)
    assert main(["versions", str(spec)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines[:3]] == ["3", "2", "1"]
    assert "- rows, - quarantined" in lines[0]
    assert "its files have 1 rows succeeded, and its report says None" in lines[3]


def said(body: dict[str, Any], number: int) -> dict[str, Any]:
    report = {
        **body["report"],
        "advice": [{"code": TEXT, "evidence": TEXT, "change": TEXT}],
        "counts": {**body["report"]["counts"], "truncated": None},
    }
    return {
        "published_at": TEXT, "model_source": f"{TEXT} {number}", "fingerprint": TEXT, "run": TEXT,
        "output_column": TEXT, "slice_key": TEXT, "report": report,
    }  # fmt: skip


def forge(path: str, body: Any) -> None:
    """As somebody who makes the checksum right, too."""
    Path(path).write_bytes(documents.encode(body))


def test_text_of_others_is_one_line_and_no_command_to_the_terminal(
    forged: SliceJob, tmp_path: Path, capsys: Out
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(forged.model_dump_json())
    first, second = staged_names(folders_of(forged).metadata)
    for command, quotes in (TABLE | SPEC).items():
        name, *arguments = command.replace("FIRST", first).replace("SECOND", second).split()
        main([name, forged.output_path if command in TABLE else str(spec), *arguments])
        printed = capsys.readouterr()
        text = printed.out + printed.err
        assert not {"\x1b", "\r", "\u202e"} & set(text), command
        assert not [line for line in text.split("\n") if line.startswith("forged")], command
        assert ("red" in text) == quotes, (command, text)
        assert "Traceback" not in text, text
