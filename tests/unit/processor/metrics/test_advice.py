from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.report import Balance, Counts, Seconds, Utilisation
from airflow_provider_raydatallm.processor.metrics.advice import RunFacts, advise
from airflow_provider_raydatallm.processor.sizing.facts import Sizes

#: Rows are admitted one by one.
BY_ROWS = Sizes((4, 4), (4, 4), None, 2048, 1024, 2048)
HEALTHY: dict[str, Any] = {
    "counts": Counts(planned=10_000, succeeded=10_000, truncated=10),
    "utilisation": Utilisation(gpu_mean=93.0), "seconds": Seconds(engine_start=60.0, inference=600.0),
    "balance": Balance(workers=4, max_over_mean=1.05), "worker_busy": 0.99,
    "sizes": Sizes((4, 4), (4, 4), 128, 4096, 1024, 128),
}  # fmt: skip


def test_healthy_run_gets_no_advice() -> None:
    assert advise(RunFacts(**HEALTHY)) == ()


@pytest.mark.parametrize("labels", [{}, {"good": 49}, {"good": 94, "bad": 6}])
def test_few_answers_or_several_labels_give_no_advice(labels: dict[str, int]) -> None:
    assert advise(RunFacts(**HEALTHY, labels=labels)) == ()


def test_unmeasured_run_gets_no_advice() -> None:
    assert advise(RunFacts(Counts(planned=10, succeeded=10))) == ()


@pytest.mark.parametrize(
    ("changes", "code", "evidence", "change"),
    [
        (
            {"utilisation": Utilisation(gpu_mean=61.0), "worker_busy": 0.7},
            "gpu_waits_for_rows", "busy 61% of 600 s, and the workers had rows for 70%", "(it was 128)",
        ),
        (
            {"utilisation": Utilisation(gpu_mean=61.0), "worker_busy": 0.99},
            "gpu_not_filled", "though the workers had rows all the time", "raise max_num_seqs",
        ),
        (
            {"repeated_share": 0.72}, "answers_repeat_prompts", "72% of the answers' tokens",
            "speculative_config to 'ngram'",
        ),
        ({"labels": {"good": 98, "bad": 2}}, "one_label", "98 of 100 answers (98%) are 'good'", "sample"),
        ({"could_use_fp8": True}, "fp8_would_help", "busy 93% of 600 s", "set quantization to 'fp8'"),
        (
            {"balance": Balance(workers=4, max_over_mean=1.5)},
            "workers_unbalanced", "longest of 4 workers was busy 1.50", "(it was 128) to 64",
        ),
        (
            {"balance": Balance(workers=4, max_over_mean=1.5), "sizes": BY_ROWS},
            "workers_unbalanced", "longest of 4 workers was busy 1.50", "set max_tokens from a column",
        ),
        (
            {"utilisation": Utilisation(gpu_mean=61.0), "worker_busy": 0.7, "sizes": BY_ROWS},
            "gpu_waits_for_rows", "the workers had rows for 70%", "give reading and preprocess more CPUs",
        ),
        (
            {"counts": Counts(planned=200, succeeded=200, truncated=30)},
            "answers_cut", "30 of 200 answers (15.0%)", "raise max_tokens",
        ),
        (
            {"late_s": 200.0},
            "finished_late", "finished 200 s after", "engine.workers to 6, with engine.batch_size 85",
        ),
        ({"late_s": 601.0}, "finished_late", "finished 601 s after", "start the run earlier"),
        ({"too_long_rows": 500}, "prompts_too_long", "500 of 10,000 prompts (5.0%)", "raise max_model_len"),
        ({"too_long_rows": 500, "task": "embed"}, "prompts_too_long", "500 of 10,000", "on_too_long='chunk'"),
        (
            {"seconds": Seconds(engine_start=66.0, inference=10.0)},
            "start_longer_than_work", "4 engines took 66 s to start for 10 s", "lower engine.workers",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else None,
)  # fmt: skip
def test_advice_has_its_evidence_and_the_setting_to_change(
    changes: dict[str, Any], code: str, evidence: str, change: str
) -> None:
    [advice] = advise(RunFacts(**{**HEALTHY, **changes}))
    assert advice.code == code
    assert evidence in advice.evidence
    assert change in advice.change


@pytest.mark.parametrize(
    "changes",
    [
        # Too short.
        {"utilisation": Utilisation(gpu_mean=61.0), "seconds": Seconds(engine_start=60.0, inference=25.0)},
        {"utilisation": Utilisation(gpu_mean=61.0), "worker_busy": None},  # unknown who waited
        {"repeated_share": 0.4},
        {"balance": Balance(workers=1, max_over_mean=3.0)},
        # One engine is the minimum.
        {"balance": Balance(workers=1), "seconds": Seconds(engine_start=60.0, inference=5.0)},
    ],
)
def test_no_advice_without_evidence(changes: dict[str, Any]) -> None:
    assert advise(RunFacts(**{**HEALTHY, **changes})) == ()
