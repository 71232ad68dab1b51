"""One Airflow and one Ray head for the whole folder, and the table that the session ends with."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from airflow_provider_raydatallm.clusters.embedded.head import free_ports
from tests.support.airflow_processes import Airflow
from tests.support.kube.server import Kube, kube_server
from tests.support.outcomes import Outcomes, table_of
from tests.support.paths import ROOT
from tests.support.ray_door import Cluster
from tests.support.scene import Scene
from tests.support.sealed_backend import Vault
from tests.support.smtp_server import MailServer, mail_server
from tests.support.tables import Table

MAX_WAITING_JOBS = 2
HUB_TOKEN, WAREHOUSE_PASSWORD = "hf_open/sesame%+1", "warehouse-sesame"
_HERE = Path(__file__).parent
_ENGINES = (ROOT / "tests" / "support" / "stub_engine.py", ROOT / "tests" / "support" / "held_engine.py")


@pytest.fixture(scope="package")
def data() -> Iterator[Path]:
    """The folder that holds the tables."""
    with tempfile.TemporaryDirectory(prefix="durable-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """The Ray head that the connection `ray_default` of `airflow` names. It is started by `airflow`."""
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="package")
def mails() -> Iterator[MailServer]:
    """Where the connection `smtp_default` of `airflow` leads."""
    with mail_server() as server:
        yield server


@pytest.fixture(scope="package")
def vault(data: Path) -> Vault:
    """What every process of `airflow` asks first for a connection. It is open, and has none."""
    return Vault(data / "vault")


@pytest.fixture(scope="package")
def kube() -> Iterator[Kube]:
    """Where the connection `kubernetes_default` of `airflow` leads."""
    with kube_server() as kube:
        yield kube


@pytest.fixture(scope="package")
def redis_address() -> str:
    """Where the heads of the DAGs `recovering_...` look for Redis. A test starts it."""
    [port] = free_ports(1)
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="package")
def airflow(
    cluster: Cluster, data: Path, mails: MailServer, vault: Vault, kube: Kube, redis_address: str
) -> Iterator[Airflow]:
    """All of Airflow, and the cluster, running."""
    environment = {
        "AIRFLOW_CONN_RAY_DEFAULT": cluster.connection,
        "AIRFLOW_CONN_RAY_EMBEDDED": "ray://local",
        "AIRFLOW_CONN_RAY_KUBERAY": "ray://kuberay",
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(
            {"conn_type": "kubernetes", "extra": {"kube_config": kube.kubeconfig()}}
        ),
        "AIRFLOW_CONN_SMTP_DEFAULT": mails.connection,
        "AIRFLOW_CONN_HUB": json.dumps({"conn_type": "huggingface", "password": HUB_TOKEN}),
        "AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": "postgres", "password": WAREHOUSE_PASSWORD}),
        "DATABASE_URL": f"postgresql://warehouse:{WAREHOUSE_PASSWORD}@warehouse/data",
        "AIRFLOW_RAY_LLM_LOCAL_DIR": str(data / "w"),
        "DURABLE_ROOT": str(data),
        "DURABLE_REDIS": redis_address,
        "RAY_LLM_DEMO_INPUT": str(data / "customers"),
        "RAY_LLM_DEMO_OUTPUT": str(data / "industries"),
        "RAY_LLM_EXAMPLE_GOLDEN": str(data / "golden.csv"),
        "AIRFLOW__RAY_LLM__MAX_WAITING_JOBS": str(MAX_WAITING_JOBS),
        "AIRFLOW__RAY_LLM__SHOW_SAMPLES": "true",
        "DURABLE_ENGINES": os.pathsep.join(map(str, _ENGINES)),
        **vault.environment,
    }
    airflow = Airflow(_HERE / "dags", environment)
    head = threading.Thread(target=cluster.start)
    head.start()
    try:
        airflow.start_all()
        examples = {"customers_by_industry", "customers_own_cluster", "customers_reviewed"}
        airflow.api.wait_dags({"manual_waiting", "mapped_waiting", *examples})
        head.join()  # a busy machine takes longer for it than some tasks wait
        yield airflow
    finally:
        head.join()
        airflow.close()


@pytest.fixture
def make_table(data: Path, request: pytest.FixtureRequest) -> Callable[..., Table]:
    """Make a table with rows in these slices: `make_table("2025-01-01", name="manual_waiting")`; without a
    name it is the test's own, which a run's Param `table` has to name."""
    counter = itertools.count()

    def make(*slices: str, name: str | None = None) -> Table:
        test = "".join(c if c.isalnum() else "_" for c in request.node.name)
        table = Table(data, name or f"{test}_{next(counter)}")
        table.write(*slices)
        return table

    return make


@pytest.fixture(params=["waiting", "deferred"])
def mode(request: pytest.FixtureRequest) -> str:
    """How the task waits for its Ray job; the last part of each DAG's name."""
    return str(request.param)


@pytest.fixture
def scene(
    airflow: Airflow, cluster: Cluster, outcomes: Outcomes, make_table: Callable[..., Table]
) -> Iterator[Scene]:
    scene = Scene(airflow, cluster, outcomes, make_table)
    yield scene
    scene.clean()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    scene = getattr(item, "funcargs", {}).get("scene")
    if report.when == "call" and report.failed and hasattr(scene, "task"):
        try:
            log = scene.airflow.api.log(scene.task)
        except Exception as e:  # that of a hook would end the whole run
            log = repr(e)
        report.sections.append(("Airflow's log of the task", log))
    return report


_OUTCOMES = pytest.StashKey[Outcomes]()


@pytest.fixture(scope="package")
def outcomes(airflow: Airflow, cluster: Cluster, pytestconfig: pytest.Config) -> Outcomes:
    pytestconfig.stash[_OUTCOMES] = Outcomes(airflow, cluster)
    return pytestconfig.stash[_OUTCOMES]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_OUTCOMES, None)
    if found is not None and found.lines:
        terminalreporter.section("what became of slices")
        terminalreporter.line(table_of(found.lines))
        terminalreporter.line(f"{found.recorded} exceptions reached Airflow, each with its record")
