"""Finds the probes that a job asks for."""

from __future__ import annotations

from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.probes.base import Probe
from airflow_provider_raydatallm.processor.probes.golden import GoldenRows
from airflow_provider_raydatallm.processor.probes.repeated import RepeatedRows


def find_probes(inference: InferencePlan) -> tuple[Probe, ...]:
    """
    :param inference: of the slice's rows.
    :raises SliceError: when one cannot be asked.
    """
    return tuple(
        probe for find in (GoldenRows.find, RepeatedRows.find) if (probe := find(inference)) is not None
    )
