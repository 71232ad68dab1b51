"""What a task is told when its machine's Ray head cannot be used: a record of the head's own parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raydatallm.clusters.embedded import cluster as embedded
from airflow_provider_raydatallm.clusters.embedded.head import LocalHeadError
from airflow_provider_raydatallm.exceptions import RayConnectionError


def test_record_keeps_sentence_advice_and_log_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", str(tmp_path / "head"))

    def fail() -> None:
        raise LocalHeadError("it ended", advice="See its log", log=["a line", "password=s3kr1t-of-head"])

    monkeypatch.setattr(embedded, "ensure_head", fail)
    with pytest.raises(RayConnectionError) as error:
        embedded.EmbeddedCluster("c").acquire("")
    failure = error.value.failure
    assert (failure.kind, failure.sentence) == ("connection", "connection 'c': it ended")
    assert failure.advice == ("See its log",)
    assert failure.log[0] == "a line"
    assert "s3kr1t" not in str(error.value.__cause__)
