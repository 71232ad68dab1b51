"""What the embedded head and Ray Serve inherit."""

from __future__ import annotations

import pytest

from airflow_provider_raydatallm.contract.job.environment import inherited


@pytest.mark.parametrize("name", [
    "DATABASE_URL", "AIRFLOW_CONN_LAKE", "_AIRFLOW_X", "AIRFLOW__CORE__FERNET_KEY", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "VLLM_API_KEY", "GITHUB_TOKEN", "PGPASSWORD",
    "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "MY_COMPANY_X", "XPATH",
])  # fmt: skip
def test_secrets_and_unknown_variables_are_not_inherited(name: str) -> None:
    assert inherited({name: "x", "HOME": "/home"}) == {"HOME": "/home"}


@pytest.mark.parametrize("name", [
    "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LC_ALL", "TZ", "https_proxy", "NO_PROXY", "SSL_CERT_FILE",
    "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE",
    "VLLM_CPU_KVCACHE_SPACE", "TOKENIZERS_PARALLELISM", "RAY_metrics_report_interval_ms", "AWS_REGION",
    "AWS_PROFILE", "AWS_ENDPOINT_URL",
])  # fmt: skip
def test_what_programs_models_and_devices_need_is_inherited(name: str) -> None:
    assert inherited({name: "x"}) == {name: "x"}
