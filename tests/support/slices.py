"""What tests say of slices: a stub engine's arguments, and what lies in a slice's checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

PROGRAM = Path(sys.executable).parent / "airflow-ray-llm"


#: What a stub-engine task needs beside its paths: the engine is not what these tests are about.
STUB = {
    "engine": "stub_engine:StubEngine", "code_paths": [str(ROOT / "tests" / "support" / "stub_engine.py")],
    "model_source": "stub/stub", "poll_interval": 1.0,
}  # fmt: skip


#: Arguments of the shared engine that most tests use: one that asks for others waits for another start.
WARM_ENGINE = {"max_model_len": 256}

Ask = Callable[..., dict[str, Any]]


def fragments(table: Path) -> list[Path]:
    """Fragments of answers in the checkpoints of a table's slices."""
    return list(table.with_name(f"{table.name}.ray_llm").glob("*/checkpoint/*/rows-*.arrow"))


def rows_in(found: list[Path]) -> int:
    return sum(int(f.name.split("-")[-3]) for f in found)
