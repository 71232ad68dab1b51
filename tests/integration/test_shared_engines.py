"""Engines that outlive a slice, behind the real Ray Serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.conftest import Ask


@pytest.fixture
def asked(ask: Ask, tiny_model: Path, tmp_path: Path) -> Ask:
    def run(key: str, rows: int = 50, **given: Any) -> dict[str, Any]:
        pq.write_table(pa.table({"name": [f"{key} {i}" for i in range(rows)]}), tmp_path / f"{key}.parquet")
        return ask(**{
            "slice_key": key, "input_path": f"{tmp_path}/{key}.parquet", "model_source": str(tiny_model),
            "sampling_params": {"temperature": 0, "max_tokens": 8}, "engine_kwargs": {"max_model_len": 128},
            "engine_scope": "shared", "poll_interval": 1.0, **given,
        })  # fmt: skip

    return run


def test_the_second_slice_finds_the_engine_of_the_first(asked: Ask) -> None:
    first, second = asked("a"), asked("b")
    print(first["seconds"], second["seconds"])
    assert first["counts"]["succeeded"] == second["counts"]["succeeded"] == 50
    assert second["seconds"]["engine_start"] < 0.5 * first["seconds"]["engine_start"]
