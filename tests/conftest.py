"""Airflow's home and settings for the whole session: set before anything imports Airflow, and nobody's real
ones."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Ends the ids of such tests; of a test, xdist's scheduler knows nothing else.
WARM_ENGINE = "@warm_engine"

_home = tempfile.mkdtemp(prefix="ray-llm-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)

os.environ.update({
    "AIRFLOW_HOME": _home, "AIRFLOW__CORE__LOAD_EXAMPLES": "false", "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
    "AIRFLOW__CORE__DAGS_FOLDER": os.path.join(os.path.dirname(os.path.dirname(__file__)), "dags"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home}/airflow.db",
})  # fmt: skip


class _BySharing(LoadScopeScheduling):  # type: ignore[misc]
    """Sends tests that share real things, in a folder or else in a file, to one of two processes; and those
    of the warm engine, which is started once."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.endswith(WARM_ENGINE):
            return WARM_ENGINE
        folder, file = nodeid.split("::")[0].rsplit("/", 1)
        return folder if folder in ("tests/chaos", "tests/durable") else f"{folder}/{file}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _BySharing:
    return _BySharing(config, log)


# vLLM would bind each engine to the same cores, while two processes run tests.
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

for name in [n for n in os.environ if n.startswith(("RAY_", "AIRFLOW_CONN_"))]:
    del os.environ[name]
