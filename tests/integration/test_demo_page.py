"""`make page` shows what `make demo` has made."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.paths import ROOT

_WITH_HOME = """
import pathlib, demo.environment
demo.environment.HOME = pathlib.Path({!r})
import demo.page
demo.page.main()
"""


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])  # and a terminal that is closed
def test_page_of_the_demo_is_there_for_who_has_the_password_and_ends_with_all_its_processes(
    empty_database: Path, tmp_path: Path, end: signal.Signals
) -> None:
    (tmp_path / "airflow").mkdir()
    shutil.copy(empty_database, tmp_path / "airflow" / "airflow.db")
    command = [sys.executable, "-c", _WITH_HOME.format(str(tmp_path))]
    with socket.socket() as taken:  # Airflow's usual port
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 8080))
        taken.listen()
        page = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert page.stdout is not None
            said = "".join(page.stdout.readline() for _ in range(3))
            address, password = re.findall(r"(http://127.0.0.1:\d+)/plugin/ray-llm|password (\S+)\.", said)
            processes = psutil.Process(page.pid).children(recursive=True)
            with httpx.Client(base_url=address[0], trust_env=False, timeout=60) as client:
                assert client.get("/ray-llm/api/tasks").status_code == 401
                login = {"username": "admin", "password": password[1]}
                token = client.post("/auth/token", json=login).json()["access_token"]
                answer = client.get("/ray-llm/api/tasks", headers={"Authorization": f"Bearer {token}"})
            assert answer.json() == {"tasks": [], "total": 0}
        finally:
            page.send_signal(end)
            page.wait(timeout=60)
    assert len(processes) > 4
    assert psutil.wait_procs(processes, timeout=5)[1] == []
