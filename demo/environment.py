"""Where the demo's files are, and the settings of its Airflow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".demo"


def airflow_environment() -> dict[str, str]:
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "AIRFLOW_HOME": str(HOME / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow/airflow.db",
        "AIRFLOW_CONN_RAY_DEFAULT": "ray://local",
        "RAY_LLM_DEMO_INPUT": str(HOME / "customers"),
        "RAY_LLM_DEMO_OUTPUT": str(HOME / "customers_enriched"),
        "RAY_LLM_DEMO_MODEL": str(HOME / "model"),
        "PYTHONWARNINGS": "ignore",
    }


def program(name: str) -> str:
    """Returns the path of one of the environment's programs."""
    return str(Path(sys.executable).parent / name)
