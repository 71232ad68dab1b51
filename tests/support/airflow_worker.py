"""Runs every task of a DAG as an Airflow worker does: `python -m tests.support.airflow_worker DAG_ID
[LOGICAL_DATE]`. The run is made as `airflow dags trigger` makes it.

A supervisor and a forked task runner for each, so that logs take the way that they take in production; only
the API server is in the supervisor's own process. Logs land in
$AIRFLOW_HOME/logs, those of tasks that are not called `prints...` on stdout too.
"""

from __future__ import annotations

import sys


def run(dag_id: str, logical_date: str | None = None) -> None:
    from airflow._shared.timezones import timezone
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.executors.workloads.base import BundleInfo
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType

    with create_session() as session:
        manager = DagBundlesManager()
        manager.sync_bundles_to_db(session=session)
        session.commit()
        (bundle,) = manager.get_all_dag_bundles()
        bundle.initialize()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        assert not bag.import_errors, bag.import_errors
        sync_bag_to_db(bag, bundle.name, bundle.version)
        run = trigger_dag(
            dag_id, run_id="r", logical_date=logical_date and timezone.parse(logical_date),
            triggered_by=DagRunTriggeredByType.CLI, session=session,
        )  # fmt: skip
        assert run is not None
        run.set_state(DagRunState.RUNNING)
        tasks = []
        for ti in run.get_task_instances(session=session):
            ti.state, ti.try_number = TaskInstanceState.QUEUED, 1
            session.flush()
            tasks.append(TaskInstanceDTO.model_validate(ti, from_attributes=True))
    for task in tasks:
        supervise_task(
            ti=task, bundle_info=BundleInfo(name=bundle.name), dag_rel_path=bag.dags[dag_id].relative_fileloc,
            token="", client=InProcessTestSupervisor._api_client(), log_path=f"{task.task_id}.log",
            subprocess_logs_to_stdout=not task.task_id.startswith("prints"),
        )  # fmt: skip


if __name__ == "__main__":
    run(*sys.argv[1:])
