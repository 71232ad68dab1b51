"""The pool of feeders, and the files by which a model is identified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.vllm.feeder import feeder_pool
from airflow_provider_raydatallm.processor.sizing.cluster_probe import model_files


@pytest.mark.parametrize(("actors", "waiting"), [((2, 2), 2), ((2, 8), 16)])
def test_pool_of_feeders_can_scale_up_when_it_may(actors: tuple[int, int], waiting: int) -> None:
    from ray.data import DataContext

    strategy: Any = feeder_pool(actors, 16)["compute"]
    assert strategy.max_tasks_in_flight_per_actor == 16 + waiting
    threshold = DataContext.get_current().autoscaling_config.actor_pool_util_upscaling_threshold
    assert ((16 + waiting) / 16 >= threshold) == (actors[0] < actors[1])


def test_model_replaced_in_place_has_other_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").mkdir()
    [[(name, size, _)]] = before = model_files(str(tmp_path))
    assert (name, size) == ("config.json", 2)
    assert model_files(str(tmp_path)) == before
    os.utime(tmp_path / "config.json", ns=(0, 0))  # of the same size
    assert model_files(str(tmp_path)) != before
    (tmp_path / "config.json").write_text("{...}")
    os.utime(tmp_path / "config.json", ns=(0, 0))  # of the same age
    assert model_files(str(tmp_path)) == [[("config.json", 5, 0)]]


def test_hub_id_has_no_local_files() -> None:
    assert model_files("meta-llama/Llama-3.1-8B-Instruct") == []
