"""Reads one DAG from its file, and writes nothing: Airflow's own `get_bagged_dag` puts all DAGs into the
database, and prints what is wrong with others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.result.failure import Failure

if TYPE_CHECKING:
    from airflow.dag_processing.bundles.base import BaseDagBundle
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk import DAG


def read_dag(dag_id: str) -> DAG:
    """Returns a DAG as its file has it: by the file that Airflow last found it in, else by all files.

    :raises SliceError: when there is none; with the files that cannot be imported.
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    bundles = {bundle.name: bundle for bundle in manager.get_all_dag_bundles()}
    bundle_of_file, file = _known_file(dag_id) or ("", "")
    places = [(bundle, "") for bundle in bundles.values()]
    if bundle_of_file in bundles:
        places.insert(0, (bundles[bundle_of_file], file))
    errors: dict[str, str] = {}
    with _quiet_imports():
        for bundle, path in places:
            bundle.initialize()
            bag = _read(bundle, Path(bundle.path, path), dag_id)
            if (dag := bag.dags.get(dag_id)) is not None:
                return dag
            errors |= bag.import_errors
    broken = f", and {len(errors)} file(s) cannot be imported: {', '.join(errors)}" if errors else ""
    raise SliceError.of(
        Failure(
            "input",
            f"there is no DAG {dag_id!r} in the bundles {', '.join(bundles)}{broken}",
            log=tuple("\n".join(errors.values()).splitlines()),
            log_of="the import" if errors else "",
        )
    )


def _known_file(dag_id: str) -> tuple[str, str] | None:
    """The bundle and the file in which Airflow's DAG processor found it."""
    from airflow.models.dag import DagModel
    from sqlalchemy.exc import SQLAlchemyError

    try:
        model = DagModel.get_dagmodel(dag_id)
    except SQLAlchemyError:  # no database, or an empty one
        return None
    if model is None or model.relative_fileloc is None:
        return None
    return model.bundle_name, model.relative_fileloc


def _read(bundle: BaseDagBundle, path: Path, dag_id: str) -> BundleDagBag:
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

    class Bag(BundleDagBag):
        log = logging.getLogger(__name__)  # type: ignore[assignment]  # which `_quiet_imports` reaches

    with _airflow_parsing_context_manager(dag_id=dag_id):
        return Bag(dag_folder=path, bundle_path=bundle.path, bundle_name=bundle.name)


@contextmanager
def _quiet_imports() -> Iterator[None]:
    """Other DAGs' files may be broken: what their bag collects is told of where this one is not found."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
