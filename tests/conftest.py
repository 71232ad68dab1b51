"""Airflow's home and settings for the whole session: set before anything imports Airflow, and nobody's real
ones."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

import pytest
from xdist.scheduler import LoadScopeScheduling

_home = tempfile.mkdtemp(prefix="ray-llm-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)

os.environ.update({
    "AIRFLOW_HOME": _home, "AIRFLOW__CORE__LOAD_EXAMPLES": "false", "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
    "AIRFLOW__CORE__DAGS_FOLDER": os.path.join(os.path.dirname(os.path.dirname(__file__)), "dags"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home}/airflow.db",
})  # fmt: skip


#: Whose tests share what is started once.
_FOLDERS = frozenset({"tests/chaos", "tests/durable", "tests/browser", "tests/integration/one_engine"})


class _BySharing(LoadScopeScheduling):  # type: ignore[misc]
    """Sends tests that share real things, in a folder or else in a file, to one of two processes."""

    def _split_scope(self, nodeid: str) -> str:
        folder, file = nodeid.split("::")[0].rsplit("/", 1)
        return folder if folder in _FOLDERS else f"{folder}/{file}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _BySharing:
    return _BySharing(config, log)


for name in [n for n in os.environ if n.startswith(("RAY_", "AIRFLOW_CONN_"))]:
    del os.environ[name]
