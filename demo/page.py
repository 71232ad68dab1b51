"""`make page`: Airflow's UI on this machine, with the slices of `make demo`.

All of Airflow runs until Ctrl-C, so that what the page offers is done, such as answering a day again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from demo.environment import HOME, airflow_environment, program

PORT = 8080
_USER = "admin"
_START_SECONDS = 180


def main() -> int:
    if not (HOME / "airflow" / "airflow.db").exists():
        print("There is no slice to look at yet: make demo", file=sys.stderr)
        return 1
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    environment = airflow_environment() | {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(HOME / "airflow" / "passwords.json"),
        "AIRFLOW__RAY_LLM__SHOW_SAMPLES": "true",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
    }
    log_file = HOME / "page-log.txt"
    print(f"Starting Airflow (its log: {log_file})", flush=True)
    with open(log_file, "w") as log:
        airflow = subprocess.Popen(
            [program("airflow"), "standalone"],
            env=environment,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    for end in (signal.SIGTERM, signal.SIGHUP):  # and a terminal that is closed
        signal.signal(end, signal.default_int_handler)
    try:
        if not _wait_until_it_answers(airflow, f"{address}/ray-llm/openapi.json"):
            print(*log_file.read_text(errors="replace").splitlines()[-30:], sep="\n", file=sys.stderr)
            return 1
        password = json.loads((HOME / "airflow" / "passwords.json").read_text())[_USER]
        print(f"The slices: {address}/plugin/ray-llm", flush=True)
        print(f"Log in as {_USER} with the password {password}. Ctrl-C ends Airflow.", flush=True)
        return airflow.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        _end(airflow)


def _free_port() -> int:
    """Returns Airflow's usual port, or any that is free."""
    for port in (PORT, 0):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            return int(listener.getsockname()[1])
    raise AssertionError("port 0 is always free")


def _wait_until_it_answers(airflow: subprocess.Popen[bytes], url: str) -> bool:
    end = time.monotonic() + _START_SECONDS
    while airflow.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    return False


def _end(airflow: subprocess.Popen[bytes]) -> None:
    """Ends all of Airflow's processes, which are one group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(airflow.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            airflow.wait(timeout=20)
        os.killpg(airflow.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
