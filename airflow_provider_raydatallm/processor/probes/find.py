"""Finds the probes that a job asks for."""

from __future__ import annotations

from airflow_provider_raydatallm.processor.inference.ray_cluster import InferencePlan
from airflow_provider_raydatallm.processor.probes.base import Probe
from airflow_provider_raydatallm.processor.probes.golden import GoldenRows
from airflow_provider_raydatallm.processor.probes.judged import JudgedAnswers
from airflow_provider_raydatallm.processor.probes.repeated import RepeatedRows


def find_probes(inference: InferencePlan) -> tuple[Probe, ...]:
    """
    :param inference: of the slice's rows.
    :raises SliceError: when one cannot be asked.
    """
    found = (probe.find(inference) for probe in (GoldenRows, RepeatedRows, JudgedAnswers))
    return tuple(probe for probe in found if probe is not None)
