import json

from airflow_provider_raydatallm.contract.result.report import Counts, Report


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
        "dashboard_url", "fingerprint", "labels", "quarantine_reasons",
        "counts", "tokens", "seconds", "throughput", "utilisation", "balance", "advice",
    }  # fmt: skip
    assert set(xcom["seconds"]) == {"queued", "start", "engine_start", "inference", "publish", "total"}
    assert set(xcom["counts"]) == {
        "planned", "succeeded", "resumed", "quarantined", "invalid_output", "truncated", "shortened",
        "deduplicated", "cached", "asked_again", "uncounted",
    }  # fmt: skip
    assert set(xcom["tokens"]) == {"input", "output", "cached", "reasoning", "saved"}
    assert json.loads(json.dumps(xcom)) == xcom
