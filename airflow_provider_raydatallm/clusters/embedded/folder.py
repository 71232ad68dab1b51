"""The folder of an embedded Ray head: who may use it, its lock, and the record of the head in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from airflow_provider_raydatallm.clusters.embedded.processes import LocalHeadError, head_environment

FOLDER_VARIABLE = "AIRFLOW_RAY_LLM_LOCAL_DIR"
#: `tmp` is Ray's.
_FILES = {"head.lock", "head.json", "head.log", "id", "token", "tmp"}
_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class LocalHead:
    """A healthy embedded head."""

    #: The Ray Jobs API and dashboard, `http://127.0.0.1:PORT`.
    address: str
    token: str = field(repr=False)
    #: Of `ray start --block`, the leader of its own session.
    pid: int
    #: Logical CPUs, by which Ray schedules; the machine may have fewer.
    num_cpus: int
    #: ISO 8601, UTC.
    started_at: str
    folder: Path
    ray_version: str
    #: For drivers on this machine.
    gcs_address: str

    def environment(self) -> dict[str, str]:
        """Returns the environment of a process on this machine whose Ray connects to the head."""
        return head_environment(self.folder) | {"RAY_ADDRESS": self.gcs_address}


@dataclass(frozen=True)
class HeadRecord:
    """`head.json` and `token`: the head that was started last."""

    head: LocalHead
    #: Address of the node's agent.
    agent: str
    python: str
    #: Identity by pid of `ray start` and its direct children: the head lives while all of them do.
    processes: dict[int, str]


def resolve(folder: Path | None) -> Path:
    """Returns the absolute path of `folder`, default `$AIRFLOW_RAY_LLM_LOCAL_DIR`, else one in /tmp."""
    if not sys.platform.startswith("linux"):
        raise LocalHeadError("the embedded Ray head runs on Linux only", advice="Connect to a Ray cluster")
    if folder is None and (configured := os.environ.get(FOLDER_VARIABLE)):
        folder = Path(configured)
    if folder is None:
        folder = Path(tempfile.gettempdir(), f"airflow-ray-llm-{os.getuid()}")
        # Checked before links are followed: another user's link may point at a folder of ours.
        with suppress(FileNotFoundError):
            _check_owner(folder)
    return folder.expanduser().resolve()


def _check_owner(folder: Path) -> None:
    if (owner := folder.lstat().st_uid) != os.getuid():
        raise LocalHeadError(
            f"the folder of the embedded Ray head, {folder}, belongs to user id {owner}, but this process "
            f"runs as {os.getuid()}",
            advice=f"Set {FOLDER_VARIABLE} to a folder of your own",
        )


def prepare(folder: Path | None) -> Path:
    """Creates the folder if needed; refuses one that is too long, another user's, or holds other files."""
    folder = resolve(folder)
    socket_path = f"{folder}/tmp/session_2026-01-31_00-00-00_000000_{2**22}/sockets/plasma_store"
    if (excess := len(os.fsencode(socket_path)) - _SOCKET_PATH_BYTES) > 0:
        raise LocalHeadError(
            f"the folder of the embedded Ray head, {folder}, is {excess} bytes too long for Unix sockets",
            advice=f"Set {FOLDER_VARIABLE} to a shorter path",
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(folder)
        names = {path.name for path in folder.iterdir()}
        if (others := names - _FILES) and "head.lock" not in names:
            raise LocalHeadError(
                f"the folder of the embedded Ray head, {folder}, holds other files ({min(others)}, ...)",
                advice=f"Set {FOLDER_VARIABLE} to an empty or a new folder",
            )
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise LocalHeadError(
            f"the folder of the embedded Ray head, {folder}, cannot be used: {error}",
            advice=f"Set {FOLDER_VARIABLE} to another one",
        ) from error
    return folder


def identity(folder: Path) -> str | None:
    """Returns what tells this folder's heads, one after the other, from those of other machines; None when
    no head was ever started there."""
    with suppress(OSError):
        return (folder / "id").read_text()
    return None


@contextmanager
def locked(folder: Path, deadline: float) -> Iterator[None]:
    with (folder / "head.lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalHeadError(
                        "another process is still starting or stopping the embedded Ray head "
                        f"(it holds {lock.name})",
                        advice="Wait for it, or end it and try again",
                    ) from None
                time.sleep(0.1)
        yield


def read_record(folder: Path) -> HeadRecord | None:
    """Returns None when there is no record, or an incomplete one."""
    try:
        state = json.loads((folder / "head.json").read_text())
        token = (folder / "token").read_text()
        head = LocalHead(**state["head"], token=token, folder=folder)
        processes = {int(pid): str(identity) for pid, identity in state["processes"].items()}
        return HeadRecord(head, str(state["agent"]), str(state["python"]), processes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_record(record: HeadRecord) -> None:
    """Writes everything except the token, which exists already."""
    state = asdict(record)
    del state["head"]["token"], state["head"]["folder"]
    write_private(record.head.folder / "head.json", json.dumps(state, indent=1))


def write_private(path: Path, text: str) -> None:
    """Writes a file atomically, readable by this user only."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.replace(path)


def remove_sessions(folder: Path) -> None:
    """Removes Ray's ended sessions, except the logs of the last one."""
    sessions = sorted(folder.glob("tmp/session_2*"))
    for session in sessions[:-1]:
        shutil.rmtree(session, ignore_errors=True)
    for entry in sessions[-1].iterdir() if sessions else ():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink(missing_ok=True)
        elif entry.name != "logs":
            shutil.rmtree(entry, ignore_errors=True)
