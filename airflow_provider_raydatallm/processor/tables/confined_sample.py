"""Reads rows of files that others wrote, for a server that must not end or swell by them.

A Parquet file of a kilobyte may hold gigabytes, and its footer may say anything. So a process of its own
decodes it, with a limit of memory and time. That process is given no credentials and no files: it asks for
bytes of the files by its pipe, and answers with short texts. Both ends of the pipe are here.

A request is a line of JSON: `{"file": n}` opens the n-th file, `{"at": n, "size": n}` reads of it. The reply
is a number of bytes: of the file, or that follow. A line with `rows`, `damaged` or `missing` is the last one.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING, Any

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Place

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.storage.store import Store

#: What decoding may take beside the process itself.
_MEMORY_BYTES = 256 << 20
#: Of an answer; 20 rows of 60 columns with 2,000 characters of 6 bytes are less.
_ANSWER_BYTES = 16 << 20
#: Of the files, at once.
_PIECE_BYTES = 1 << 20
_NUMBER = struct.Struct("<q")
#: The import path is this process's, whatever the environment says.
_MAIN = f"import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"
_ENVIRONMENT = {
    # Allocators that reserve memory would meet the limit without using it.
    "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip


def confined_sample(
    files: Sequence[tuple[Store, str]], rows: int, columns: int, limit_s: float
) -> tuple[list[str], list[list[str | None]]]:
    """Returns the names of the first columns and the first rows of all files together, as short texts.

    :param limit_s: after which the process is killed.
    :raises SliceError: naming a file that is damaged, or that takes more memory or time than it may.
    :raises ImportError: when pyarrow is missing.
    """
    asked = [sys.executable or "", "-I", "-S", "-c", _MAIN, json.dumps([*map(str, sys.path)])]
    asked += [str(n) for n in (len(files), rows, columns, math.ceil(limit_s), _MEMORY_BYTES)]
    environment = _ENVIRONMENT | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    try:
        decoder = subprocess.Popen(
            asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError as e:
        raise _not_started(e) from e
    with decoder as process:
        timer = threading.Timer(limit_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            return _serve(process, files)
        finally:
            timer.cancel()
            process.kill()
            process.communicate()


def _serve(
    process: subprocess.Popen[bytes], files: Sequence[tuple[Store, str]]
) -> tuple[list[str], list[list[str | None]]]:
    assert process.stdin is not None
    assert process.stdout is not None
    place = ""
    file: IO[bytes] = io.BytesIO()
    with ExitStack() as opened:
        while (line := process.stdout.readline(_ANSWER_BYTES)).endswith(b"\n"):
            request = json.loads(line)
            if "rows" in request:
                return request["names"], request["rows"]
            if "damaged" in request:
                raise SliceError(
                    f"{place} is damaged",
                    kind="input",
                    place=Place(file=place),
                    row_texts=(str(request["damaged"]),),
                )
            if "missing" in request:
                raise ImportError(f"no module {request['missing']}", name=request["missing"])
            if "file" in request:
                opened.close()
                store, name = files[request["file"]]
                place, file = f"{store.url}/{name}", opened.enter_context(_open(store, name))
                reply = _NUMBER.pack(file.seek(0, os.SEEK_END))
            else:
                file.seek(request["at"])
                data = file.read(min(request["size"], _PIECE_BYTES))
                reply = _NUMBER.pack(len(data)) + data
            try:
                process.stdin.write(reply)
                process.stdin.flush()
            except BrokenPipeError:
                break
    if not place and not line and (status := process.wait()) > 0:
        raise _not_started(f"it ended with {status}")
    raise SliceError(
        f"{place or 'a sample'} takes more memory or time than a sample may ({_MEMORY_BYTES:,} bytes)",
        kind="input",
    )


def _open(store: Store, name: str) -> IO[bytes]:
    # Object stores' filesystems read ahead by 50 MB, of each column.
    return store.open(name) if store.is_local else store.open(name, block_size=_PIECE_BYTES)


def _not_started(why: object) -> SliceError:
    return SliceError(
        f"a sample is read by a Python process of its own, and {sys.executable!r} does not start: {why}",
        kind="input",
    )


# The process that decodes


class _Asked(io.RawIOBase):
    """A file of which the server reads."""

    def __init__(self, number: int) -> None:
        self._position, self._size = 0, _ask({"file": number})

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        )
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._position + size, self._size)
        data = bytearray()
        while self._position < end:
            piece = sys.stdin.buffer.read(_ask({"at": self._position, "size": end - self._position}))
            if not piece:
                break
            data += piece
            self._position += len(piece)
        return bytes(data)


def main() -> None:
    """Decodes the first rows, within its limits."""
    count, rows, columns, cpu_s, memory_bytes = map(int, sys.argv[2:])
    try:
        from airflow_provider_raydatallm.processor.tables.short_cells import short_cells
    except ImportError as e:
        _say({"missing": e.name})
        return
    _limit(cpu_s, memory_bytes)
    names: list[str] = []
    lines: list[list[str | None]] = []
    try:
        for number in range(count):
            names, cells = short_cells(_Asked(number), rows - len(lines), columns)  # type: ignore[arg-type]
            lines += [list(line) for line in zip(*cells, strict=True)]
            if len(lines) >= rows:
                break
    except MemoryError:
        raise
    except Exception as e:  # whatever Arrow says of a file that may hold anything
        _say({"damaged": str(e)[:1_000]})
    else:
        _say({"names": names, "rows": lines})


def _limit(cpu_s: int, memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(FileNotFoundError):  # macOS has neither this file nor the limit
        with open("/proc/self/statm") as f:
            now = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes,) * 2)


def _ask(request: dict[str, Any]) -> int:
    _say(request)
    (number,) = _NUMBER.unpack(sys.stdin.buffer.read(_NUMBER.size))
    return int(number)


def _say(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
