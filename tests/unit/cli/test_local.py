from __future__ import annotations

import pytest

from airflow_provider_raydatallm.cli.main import main


@pytest.mark.parametrize("action", ["start", "stop"])
def test_folder_that_cannot_be_used_is_told_not_raised(
    action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_RAY_LLM_LOCAL_DIR", "/tmp/" + "x" * 100)
    assert main(["local", action]) == 1
    assert "error: the folder of the embedded Ray head" in capsys.readouterr().err
