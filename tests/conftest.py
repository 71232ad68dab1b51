"""Airflow's home and settings for the whole session: set before anything imports Airflow, and nobody's real
ones."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_home = tempfile.mkdtemp(prefix="ray-llm-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)

os.environ.update({
    "AIRFLOW_HOME": _home, "AIRFLOW__CORE__LOAD_EXAMPLES": "false", "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
    "AIRFLOW__CORE__DAGS_FOLDER": os.path.join(os.path.dirname(os.path.dirname(__file__)), "dags"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home}/airflow.db",
})  # fmt: skip
for name in [n for n in os.environ if n.startswith(("RAY_", "AIRFLOW_CONN_"))]:
    del os.environ[name]
