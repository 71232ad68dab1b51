"""Where in Airflow's UI the page is. Every Airflow process loads this module."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from airflow.configuration import conf

#: Of the API's app, and of the page among Airflow's own.
APP, PAGE = "/ray-llm", "ray-llm"


def airflow_path(path: str) -> str:
    """Returns a path of Airflow's server as a browser calls it: behind any path of Airflow's address."""
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}{path}"


def with_host(path: str) -> str:
    """Returns a path of Airflow's server as an address, for what is read elsewhere than in Airflow's UI."""
    base = urlsplit(conf.get("api", "base_url", fallback="http://localhost:8080"))
    return f"{base.scheme}://{base.netloc}{path}"


def task_page(dag_id: str, task_id: str, run_id: str, map_index: int) -> str:
    """Returns the path of Airflow's own page of a task instance."""
    dag, task, run = (quote(name, safe="") for name in (dag_id, task_id, run_id))
    mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
    return airflow_path(f"/dags/{dag}/runs/{run}/tasks/{task}{mapped}")


def slice_page(dag_id: str, task_id: str, run_id: str, map_index: int) -> str:
    """Returns the path of the page of a task instance's slice."""
    dag, task, run = (quote(name, safe="") for name in (dag_id, task_id, run_id))
    return airflow_path(f"/plugin/{PAGE}/dags/{dag}/tasks/{task}/runs/{run}/{map_index}")
