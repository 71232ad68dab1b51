"""Where Ray waits for ever without a word, a job ends in time, with an error that says what it waited for or
what broke."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.clusters.embedded.head import LocalHead
from airflow_provider_raydatallm.exceptions import RayEngineDiedError, RayLLMInputError, RayQueueTimeoutError
from tests.support.deadly_files import deadly_environment, write_deadly_file
from tests.support.engine_processes import processes
from tests.support.marks import long
from tests.support.paths import ROOT
from tests.support.slices import Ask, fragments, rows_in
from tests.support.waiting import in_thread, wait_for

CODE = [str(ROOT / "tests" / "support" / name) for name in ("stub_engine.py", "stub_worker.py", "crowded.py")]


@pytest.fixture
def asked(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Two files of 40 rows, which take a stub worker 20 s each."""
    for file in ("a", "b"):
        rows = pa.table({"name": [f"{file}{i}" for i in range(40)]})
        pq.write_table(rows, tmp_path / f"{file}.parquet")
    return {
        "input_path": f"{tmp_path}/*.parquet", "engine": "stub_worker:StubWorkers", "code_paths": CODE,
        "model_source": str(tiny_model), "sampling_params": {"max_tokens": 500}, "poll_interval": 1.0,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("taken", "waits"), [
    ("BeforeTheStart", r"no row finished for 10 s .* 1 x ray-llm-worker .*:_StubWorker.__init__ PENDING_"),
    ("AfterTheStart", r"no row finished for 10 s .* PENDING_"),
    ("AtTheEnd", r"no call of stage_part ended for 10 s .* while 2 wait: .* 2 x stage_part PENDING_"),
])  # fmt: skip
def test_job_whose_cpus_others_take_ends_and_says_so(
    ask: Ask, asked: dict[str, Any], tmp_path: Path, taken: str, waits: str
) -> None:
    # With blocks the slice's processes are those of Ray Data.
    asked |= {
        "engine": f"crowded:{taken}",
        "publish__file_per_input": True,
        "limits__stall": 10,
        "engine__blocks": 2,
    }
    with pytest.raises(RayEngineDiedError, match=f"{waits}.*; 0 of the cluster's 8 CPUs are free"):
        ask(**asked)
    assert not list((tmp_path / "out").rglob("*.parquet"))


@pytest.mark.long
def test_job_that_waits_for_its_turn_on_a_cluster_that_became_too_small_ends(
    ask: Ask, asked: dict[str, Any]
) -> None:
    asked |= {"engine": "crowded:BeyondItsCluster", "limits__stall": 2, "limits__queue": 60}
    with pytest.raises(RayQueueTimeoutError, match=r"the cluster lost nodes, .* waited \d s: .* 1000 CPUs"):
        ask(**asked)


@pytest.mark.long
def test_worker_that_dies_more_often_than_it_may_start_ends_the_job(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    asked |= {"engine": "stub_worker:LateWorkers"}  # each is killed before it could answer
    results: list[Any] = []
    thread = in_thread(ask, results, **asked)
    journal, killed = tmp_path / "out.workers", set()
    while thread.is_alive():
        for pid in {int(line) for line in journal.read_text().split()} - killed if journal.exists() else ():
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        thread.join(0.1)
    [error] = results
    assert isinstance(error, RayEngineDiedError)
    assert "ActorDiedError: The actor is dead because its worker process has died" in str(error)
    assert len(killed) == 4


def test_fragment_writer_that_is_paused_ends_the_job_and_says_so(
    ask: Ask, asked: dict[str, Any], ray_head: LocalHead, tmp_path: Path
) -> None:
    asked |= {"engine": "stub_worker:PatientWorkers", "limits__stall": 4}
    results: list[Any] = []
    thread = in_thread(ask, results, **asked)
    wait_for(lambda: fragments(tmp_path / "out"))
    [writer] = processes(ray_head, "ray::SliceProcess")
    writer.suspend()
    (tmp_path / "out.gate").touch()
    thread.join(120)
    assert not thread.is_alive()
    [error] = results
    assert isinstance(error, RayEngineDiedError)
    assert re.search(
        r"no row finished for 4 s .* rows wait: no answer from the fragment writer on the slice's process",
        str(error),
    )
    wait_for(lambda: not writer.is_running())


@pytest.mark.long
@pytest.mark.parametrize("blocks", [None, long(2)])  # in the slice's process, and in those of Ray Data
def test_file_that_ends_its_readers_is_named(
    ask: Ask, asked: dict[str, Any], tmp_path: Path, blocks: int | None
) -> None:
    write_deadly_file(tmp_path / "c.parquet")
    environment = deadly_environment(tmp_path / "site", signal.SIGSEGV)
    with pytest.raises(RayLLMInputError, match=r"c\.parquet: reading its rows 1 to 13 ended two processes"):
        ask(**asked, engine__blocks=blocks, runtime_env={"env_vars": environment})


_ASK = """
import os, time

def ask(row, gate={gate!r}):
    while row["name"].startswith("b") and not os.path.exists(gate):
        time.sleep(0.1)
    return {{"messages": [{{"role": "user", "content": row["name"]}}]}}
"""


@pytest.mark.long
@pytest.mark.parametrize("can_start", [True, False])
def test_feeder_that_died_while_it_had_nothing_to_do_is_replaced(
    ask: Ask, asked: dict[str, Any], ray_head: LocalHead, tmp_path: Path, can_start: bool
) -> None:
    gate = tmp_path / "out.gate"
    (tmp_path / "asking.py").write_text(_ASK.format(gate=str(gate)))
    shutil.copytree(asked["model_source"], tmp_path / "model")
    asked |= {
        "engine": "stub_worker:PatientWorkers", "model_source": f"{tmp_path}/model", "prompt": None,
        "preprocess": "asking:ask", "code_paths": [*CODE, f"{tmp_path}/asking.py"],
        "sampling_params": {"max_tokens": 1}, "engine__blocks": 2,
    }  # fmt: skip
    results: list[Any] = []
    thread = in_thread(ask, results, **asked)
    wait_for(lambda: rows_in(fragments(tmp_path / "out")) == 40)
    if not can_start:
        shutil.rmtree(tmp_path / "model")
    wait_for(lambda: len(processes(ray_head, "ray::FeederProcess")) == 1)  # those of jobs before are gone
    [feeder] = processes(ray_head, "ray::FeederProcess")
    feeder.kill()
    gate.touch()
    thread.join(300)
    [result] = results
    if can_start:
        assert result["counts"]["succeeded"] == 80
    else:
        assert "creation task" not in str(result)
        assert f"{tmp_path}/model" in str(result)


@pytest.mark.long
def test_engine_that_breaks_again_and_again_ends_the_job_with_what_broke_it(
    ask: Ask, asked: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RayEngineDiedError) as e:
        ask(**asked | {"engine": "stub_worker:BrokenWorkers"})
    root, then, *_ = str(e.value).splitlines()
    assert root.endswith("CUDA error: an illegal memory access was encountered")
    assert then.startswith("the engine dies whatever it is asked, also of a request of one token")
