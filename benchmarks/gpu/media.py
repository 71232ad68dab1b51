"""Images and recordings, answered on a GPU by the tests' tiny models of random weights.

    python -m benchmarks.gpu.media [--rows 200]

Prints one JSON line a model. Needs what `benchmarks.gpu.compare` needs, and pillow and soundfile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.compare import start_ray, timed_slice
from tests.support.images import image_file
from tests.support.recordings import recording


def images(rows: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row's image, and the arguments of the spec."""
    files = [{"n": n, "photo": image_file(seed=n)} for n in range(rows)]
    sampling = {"temperature": 0, "max_tokens": 8}
    return files, {"prompt": "What is it?", "images__column": "photo", "sampling_params": sampling}


def recordings(rows: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    files = [{"n": n, "call": recording(seed=n)} for n in range(rows)]
    return files, {"task": "transcribe", "audio__column": "call"}


#: Of a kind: what makes its rows, and its model.
KINDS: dict[str, tuple[Callable[[int], tuple[list[dict[str, Any]], dict[str, Any]]], str]] = {
    "images": (images, "tests.support.vision_model:write_vision_model"),
    "recordings": (recordings, "tests.support.speech_model:write_speech_model"),
}


def answer(kind: str, count: int) -> dict[str, Any]:
    make_rows, model = KINDS[kind]
    rows, fields = make_rows(count)
    module, name = model.split(":")
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own, as transformers takes torch for missing where it was loaded without it.
        write = f"from pathlib import Path; from {module} import {name}; {name}(Path({folder!r}))"
        subprocess.run([sys.executable, "-c", write], check=True)
        start_ray()
        given = {"engine": "vllm", "model_source": folder, "columns": ["n"], **fields}
        report, first, last = timed_slice(rows, given)
    counts = report.model_dump(mode="json")["counts"]
    return {"kind": kind, "rows_per_s": round(count / (last - first), 1), "counts": counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rows", type=int, default=200)
    args = parser.parse_args()
    if len(args.kinds) > 1:
        for kind in args.kinds:
            command = [sys.executable, "-m", "benchmarks.gpu.media", kind, "--rows", str(args.rows)]
            subprocess.run(command, check=False)
        return
    print("RESULT " + json.dumps(answer(args.kinds[0], args.rows)), flush=True)
    os._exit(0)  # engines are slow to end


if __name__ == "__main__":
    main()
