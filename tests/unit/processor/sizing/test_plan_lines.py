from __future__ import annotations

from dataclasses import replace

from airflow_provider_raydatallm.processor.sizing.facts import (
    ClusterFacts,
    EnginePlan,
    PastThroughput,
    Resources,
    Sizes,
)
from airflow_provider_raydatallm.processor.sizing.plan_lines import plan_lines

SIZES = Sizes((1, 4), (2, 8), None, 2048, 1024, 1000)
ENGINE = EnginePlan("VllmEngine", "m/m", {}, "L4", Resources(4, 2, ""), SIZES)


def lines(engine: EnginePlan = ENGINE, past: PastThroughput | None = None) -> dict[str, str]:
    cluster = ClusterFacts({"CPU": 64, "GPU": 8})
    return dict(plan_lines(rows=5000, missing_rows=4000, files=2, engine=engine, cluster=cluster, past=past))


def test_plan_has_five_lines() -> None:
    assert lines(past=PastThroughput("2026-01-01", 100.0, 30.0)) == {
        "rows": "5,000 in 2 file(s), 1,000 are finished",
        "engine": "VllmEngine, m/m",
        "workers": "1 to 4 (2 to 8 GPUs), 2,048 rows in each at once",
        "resources": "needs 4 CPUs and 2 GPUs at once, the cluster has 64 CPUs and 8 GPUs",
        "expected": "40 s: 30 s to start, then 400 rows/s, by slice 2026-01-01",
    }


def test_what_is_unknown_is_said_or_left_out() -> None:
    assert lines()["expected"].startswith("unknown: ")
    assert "workers" not in lines(replace(ENGINE, sizes=None))
