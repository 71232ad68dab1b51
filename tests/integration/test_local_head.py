"""The promises of the embedded Ray head, on real Ray: one head, joined when healthy, ended without a trace.

All tests share one folder under /tmp and join the head that lives there, or start the next one after a crash.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from airflow_provider_raydatallm.clusters.embedded import head as head_module
from airflow_provider_raydatallm.clusters.embedded.head import (
    LocalHead,
    LocalHeadError,
    ensure_head,
    head_status,
    stop_head,
)
from airflow_provider_raydatallm.clusters.embedded.processes import MARKER_VARIABLE
from tests.support.marks import long
from tests.support.paths import ROOT

pytest.importorskip("ray")

CALL = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from airflow_provider_raydatallm.clusters.embedded.head import ensure_head; print(ensure_head().pid)"
)


def short_folder() -> Path:
    """Under /tmp, as pytest's own temporary folders are too long for Unix sockets."""
    return Path(tempfile.mkdtemp(prefix="rllm-", dir="/tmp")).resolve()


@pytest.fixture
def empty() -> Iterator[Path]:
    path = short_folder()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def starters() -> Iterator[tuple[Path, set[int]]]:
    """A head started by two processes at once, in an environment full of snares; its pid by their words."""
    folder = short_folder()
    snares = {
        "PATH": "/usr/bin:/bin", "RAY_ADDRESS": "ray://nowhere:1", "RAY_AUTH_TOKEN": "x",
        "AIRFLOW_CONN_X": "x", "DATABASE_URL": "postgresql://me:secret@db/x", "AWS_SECRET_ACCESS_KEY": "x",
    }  # fmt: skip
    env = os.environ | snares | {head_module.FOLDER_VARIABLE: str(folder)}
    try:
        callers = [
            subprocess.Popen([sys.executable, "-c", CALL], env=env, stdout=subprocess.PIPE) for _ in range(2)
        ]
        yield folder, {int(caller.communicate(timeout=300)[0]) for caller in callers}
    finally:
        stop_head(folder)
        shutil.rmtree(folder)


@pytest.fixture
def folder(starters: tuple[Path, set[int]]) -> Path:
    return starters[0]


def client(head: LocalHead, token: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token or head.token}"}
    return httpx.Client(base_url=head.address, headers=headers, timeout=60, trust_env=False)


def submit(head: LocalHead, entrypoint: str) -> str:
    with client(head) as http:
        answer = http.post("/api/jobs/", json={"entrypoint": entrypoint})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["submission_id"])


def wait_for(check: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_live(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def live(folder: Path) -> set[int]:
    """The test's own look at the processes of a head."""
    found = set()
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARKER_VARIABLE) == str(folder)
        except psutil.Error:
            continue
        if (marked or f"{folder}/tmp/session" in " ".join(process.cmdline())) and is_live(process.pid):
            found.add(process.pid)
    return found


# A driver that is deaf to SIGTERM, with a child that hides as vLLM's engine does (own session, own name) and
# another that also sheds its environment. Both write their pids, and nothing to the job's log.
DRIVER = """
import os, signal, subprocess, sys
hidden = '''
import os, signal, sys, time
import setproctitle
signal.signal(signal.SIGTERM, signal.SIG_IGN)
setproctitle.setproctitle("VLLM::EngineCore")
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
'''
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", hidden, sys.argv[1] + "/renamed"], **quiet)
subprocess.Popen([sys.executable, "-c", hidden, sys.argv[1] + "/shed"], **quiet, env={})
signal.pause()
"""


def submit_stubborn_job(head: LocalHead, scratch: Path) -> tuple[int, int]:
    script, renamed, shed = scratch / "driver.py", scratch / "renamed", scratch / "shed"
    script.write_text(DRIVER)
    submit(head, f"python {script} {scratch}")
    wait_for(lambda: renamed.exists() and shed.exists())
    return int(renamed.read_text()), int(shed.read_text())


def is_status(folder: Path, head: LocalHead | None) -> None:
    """Wait for it: a busy head may take longer to answer than it is waited for, and a killed one to die."""
    wait_for(lambda: head_status(folder) == head)


def test_two_callers_at_once_get_one_head_that_outlives_them(
    starters: tuple[Path, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pids = starters
    assert len(pids) == 1
    monkeypatch.delattr(head_module, "_start")  # who joins starts nothing
    head = ensure_head(folder)
    assert {head.pid} == pids
    assert os.getsid(head.pid) == head.pid
    assert head.num_cpus >= 8
    is_status(folder, head)


def test_token_is_asked_for_and_kept_private(folder: Path) -> None:
    head = ensure_head(folder)
    for path in ("/api/version", "/api/jobs/"):
        with client(head) as right, client(head, "wrong") as wrong:
            assert right.get(path).status_code == 200
            assert wrong.get(path).status_code == 403
        assert httpx.get(f"{head.address}{path}", trust_env=False).status_code == 401
    assert head.token not in repr(head)
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_head_listens_on_loopback_only(folder: Path) -> None:
    ensure_head(folder)
    connections = [c for pid in live(folder) for c in psutil.Process(pid).net_connections("tcp")]
    hosts = {c.laddr.ip.removeprefix("::ffff:") for c in connections if c.status == psutil.CONN_LISTEN}
    assert hosts == {"127.0.0.1"}


def test_job_gets_the_python_with_ray_and_no_secret_of_the_starter(folder: Path) -> None:
    head = ensure_head(folder)
    secrets = "'AIRFLOW_CONN_X', 'DATABASE_URL', 'AWS_SECRET_ACCESS_KEY'"
    code = f"import ray, sys, os; print(sys.executable, [n for n in os.environ if n in ({secrets})])"
    job = submit(head, f'python -c "{code}"')
    with client(head) as http:
        wait_for(lambda: http.get(f"/api/jobs/{job}").json()["status"] not in ("PENDING", "RUNNING"))
        logs = http.get(f"/api/jobs/{job}/logs").json()["logs"]
    assert f"{Path(sys.executable).parent}/python []" in logs


def test_head_that_does_not_fit_is_named_and_left_alone(folder: Path) -> None:
    head = ensure_head(folder)
    with pytest.raises(
        LocalHeadError, match=rf"has {head.num_cpus} logical CPUs, but 999 are needed.*local stop"
    ):
        ensure_head(folder, min_cpus=999)
    state = folder / "head.json"
    text = state.read_text()
    state.write_text(json.dumps(json.loads(text) | {"python": "3.99 of /elsewhere"}))
    with pytest.raises(
        LocalHeadError, match=rf"Python 3\.99 of /elsewhere, .*{os.path.realpath(sys.prefix)}.*local stop"
    ):
        ensure_head(folder)
    demo = subprocess.run(
        [sys.executable, "-m", "demo.run"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, head_module.FOLDER_VARIABLE: str(folder)},
    )  # fmt: skip
    assert (demo.returncode, demo.stdout) == (1, "")  # before it wrote or trained anything
    assert f"{folder} (process {head.pid}) is Ray" in demo.stderr
    assert "local stop" in demo.stderr
    state.write_text(text)
    assert ensure_head(folder) == head


def test_head_is_not_ended_from_within(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = ensure_head(folder)
    monkeypatch.setenv(MARKER_VARIABLE, str(folder))
    with pytest.raises(LocalHeadError, match="inside"):
        stop_head(folder)
    is_status(folder, head)


@pytest.mark.parametrize("victim", [
    long("gcs_server"), long("raylet"), "main, and its state is half-written",
])  # fmt: skip
def test_after_a_crash_the_next_head_is_healthy_and_nothing_old_is_left(
    folder: Path, victim: str, tmp_path: Path
) -> None:
    old = ensure_head(folder)
    main = psutil.Process(old.pid)
    if victim == "gcs_server":
        renamed, _ = submit_stubborn_job(old, tmp_path)
        assert renamed in live(folder)
    before = live(folder)
    if victim.startswith("main"):
        state = folder / "head.json"
        state.write_text(state.read_text()[:-40])
        main.kill()
    else:
        next(child for child in main.children() if Path(child.cmdline()[0]).name == victim).kill()
    is_status(folder, None)
    new = ensure_head(folder)
    assert new.pid != old.pid
    assert not any(is_live(pid) for pid in before)
    is_status(folder, new)


def test_stop_leaves_no_process_and_ends_no_other(folder: Path, tmp_path: Path) -> None:
    head = ensure_head(folder)
    lookalike = [
        sys.executable, "-c", "import time; time.sleep(600)", "gcs_server", f"{folder}/tmp/session_x",
    ]  # fmt: skip
    others = [subprocess.Popen(lookalike)]
    with (folder / "head.log").open() as log:
        others.append(subprocess.Popen(["tail", "-f", log.name], stdin=log, stdout=subprocess.DEVNULL))
    try:
        stubborn = submit_stubborn_job(head, tmp_path)
        before = (live(folder) | set(stubborn)) - {other.pid for other in others}
        begin = time.monotonic()
        assert stop_head(folder) >= len(before) > 12
        assert time.monotonic() - begin < 300  # nobody waits until they end by themselves
        assert not any(is_live(pid) for pid in before)
        assert live(folder) <= {other.pid for other in others}
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert head_status(folder) is None
    assert stop_head(folder) == 0
    assert list(folder.glob("tmp/session_*/logs/gcs_server.out"))


def test_start_that_is_not_ready_in_time_shows_the_log_and_leaves_nothing(empty: Path) -> None:
    with pytest.raises(LocalHeadError, match=r"not ready in time(.|\n)*head\.log"):
        ensure_head(empty, timeout=3)
    assert live(empty) == set()
    assert head_status(empty) is None


def test_start_that_fails_says_why_and_leaves_nothing(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "free_ports", lambda count: [1] * count)
    with pytest.raises(
        LocalHeadError, match=r"ended by itself(.|\n)*must be an integer between 1024 and 65535"
    ):
        ensure_head(empty)
    assert live(empty) == set()


def test_caller_does_not_wait_for_ever_for_another(empty: Path) -> None:
    with (empty / "head.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalHeadError, match="another process is still starting or stopping"):
            ensure_head(empty, timeout=0.3)


@pytest.mark.parametrize("what", ["too long", "another user's", "in use", "a file"])
def test_folder_that_cannot_be_used_is_refused(what: str, empty: Path) -> None:
    folder = empty
    if what == "too long":
        folder, message = empty / ("x" * 60), "bytes too long for Unix sockets.*AIRFLOW_RAY_LLM_LOCAL_DIR"
    elif what == "in use":
        (empty / "thesis.tex").touch()
        message = r"holds other files \(thesis\.tex"
    elif what == "a file":
        (folder := empty / "file").touch()
        message = "cannot be used"
    elif os.getuid() == 0:
        os.chown(empty, 65534, -1)
        message = "belongs to user id 65534"
    else:
        folder, message = Path("/usr"), "belongs to user id 0"
    for call in (ensure_head, stop_head):
        with pytest.raises(LocalHeadError, match=message):
            call(folder)


def test_environment_without_ray_is_told_what_to_install(empty: Path) -> None:
    env = os.environ | {head_module.FOLDER_VARIABLE: str(empty)}
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", CALL], env=env, capture_output=True, text=True)
    assert "pip install 'airflow-provider-raydatallm[local]'" in bare.stderr


def test_importing_it_imports_neither_ray_nor_airflow() -> None:
    heavy = "{'ray', 'airflow', 'torch', 'vllm', 'pandas', 'pyarrow', 'httpx', 'psutil'}"
    code = f"{CALL.rpartition(';')[0]}; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
