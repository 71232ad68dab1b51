import json

import pydantic
import pytest

from airflow_provider_raydatallm.contract.log.progress_text import progress_text
from airflow_provider_raydatallm.contract.result.report import Cost, Counts, Report, WorkerShare


def test_xcom_is_the_report_and_what_only_airflow_knows() -> None:
    counts = Counts(planned=2, succeeded=2)
    report = Report(outcome="published", slice_key="k", output_path="/o", fingerprint="f", counts=counts)
    xcom = report.to_xcom(
        report_path="/o.ray_llm/ds=k/reports/report-000001.json",
        ray_job_id="j",
        dashboard_url="u",
        queued=1.0,
        total=2.0,
    )
    assert set(xcom) == {
        "outcome", "slice_key", "output_path", "published_version", "report_path", "ray_job_id",
        "staged_version",
        "dashboard_url", "fingerprint", "labels", "quarantine_reasons",
        "counts", "tokens", "seconds", "throughput", "utilisation", "balance", "golden", "gates",
        "repeat", "judge", "advice", "gpu_seconds", "gpus_held", "cost",
    }  # fmt: skip
    assert set(xcom["seconds"]) == {"queued", "start", "engine_start", "inference", "publish", "total"}
    assert set(xcom["counts"]) == {
        "planned", "succeeded", "resumed", "quarantined", "invalid_output", "repaired", "truncated",
        "degenerate", "shortened", "deduplicated", "cached", "asked_again", "uncounted",
    }  # fmt: skip
    assert set(xcom["tokens"]) == {"input", "output", "cached", "reasoning", "saved"}
    assert json.loads(json.dumps(xcom)) == xcom


def test_cost_is_of_all_tries_and_its_rates_are_of_this_run() -> None:
    assert Cost.of(7200.0, 2.5, rows=2000, tokens=4_000_000, earlier=1.0) == Cost(
        total=6.0, per_1000_rows=2.5, per_million_tokens=1.25, gpu_hour_price=2.5
    )
    only_published = Cost.of(None, 2.5, rows=0, tokens=0, earlier=1.0)
    assert only_published == Cost(total=1.0, per_1000_rows=None, per_million_tokens=None, gpu_hour_price=2.5)
    assert Cost.of(7200.0, None, 1, 1) is Cost.of(None, 2.5, 1, 1) is None
    assert Cost.of(None, 2.5, rows=1, tokens=1, earlier=1.0) is None  # this one's GPUs are not known


def test_what_is_large_stays_in_storage() -> None:
    history = {"span_s": 1.0, "offset_s": 0.0, "rows": [2] * 120}
    report = {
        "outcome": "published", "slice_key": "k", "output_path": "/o", "fingerprint": "f",
        "counts": {"planned": 240, "succeeded": 240}, "history": history,
        "per_worker": [{"name": "w", "rows": 240, "busy_share": 0.5}],
    }  # fmt: skip
    stored = Report.model_validate(report).model_dump(mode="json")
    assert stored["history"] == {**history, "gpu_busy": None, "cpu_busy": None}
    xcom = Report.model_validate(stored).to_xcom(
        report_path=None, ray_job_id=None, dashboard_url=None, queued=None, total=None
    )
    assert "history" not in xcom
    assert "per_worker" not in xcom


def test_report_without_history_is_read() -> None:
    """As earlier versions wrote it."""
    report = Report(
        outcome="published",
        slice_key="k",
        output_path="/o",
        fingerprint="f",
        counts=Counts(planned=2, succeeded=2),
    )
    earlier = report.model_dump(mode="json", exclude={"history", "per_worker"})
    assert Report.model_validate(earlier) == report


def test_lists_of_a_report_end() -> None:
    counts = Counts(planned=2, succeeded=2)
    report = Report(outcome="published", slice_key="k", output_path="/o", fingerprint="f", counts=counts)
    workers = [WorkerShare(name="w", rows=1, busy_share=1)] * 65
    history = {"span_s": 1.0, "offset_s": 0.0, "rows": [1] * 200}
    labels = {str(i): i for i in range(51)}
    for more in ({"per_worker": workers}, {"labels": labels}, {"history": history}):
        with pytest.raises(pydantic.ValidationError, match="at most"):
            Report.model_validate({**dict(report), **more})


def test_step_of_progress_that_others_wrote_is_shown_as_it_is() -> None:
    assert progress_text({"step": "{error:>99999999999} {holder.x}"}) == "{error:>99999999999} {holder.x}"
