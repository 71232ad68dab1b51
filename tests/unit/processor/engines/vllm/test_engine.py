"""The answer cache of an engine, its pool of feeders, and the files that identify its model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.processor.engines.vllm import engine_base
from airflow_provider_raydatallm.processor.engines.vllm.engine import VllmEngine
from airflow_provider_raydatallm.processor.sizing.cluster_probe import model_files
from airflow_provider_raydatallm.processor.sizing.facts import ClusterFacts, SizingInputs
from tests.support.in_process import job_of


def engine(rows: int = 10, **options: Any) -> VllmEngine:
    paths = {"input_path": "in", "output_path": "out", "engine__cache": "/answers"}
    return VllmEngine(job_of(engine="vllm", **paths, **options), rows)


def test_retried_rows_do_not_use_the_cache() -> None:
    def namespaces(**options: Any) -> Iterator[Any]:
        vllm = engine(**options)
        yield vllm._next_cache_namespace()
        yield vllm._next_cache_namespace()
        vllm.choose_sizes(SizingInputs(None, limit_raised=True))
        yield vllm._next_cache_namespace()

    first, again, _ = namespaces()
    assert (first.read_existing, first.keep_truncated, again.read_existing) == (True, True, False)
    *_, long = namespaces(
        quality__on_too_long="raise_limit", engine__kwargs={"max_model_len": 64}
    )  # for postponed rows
    assert long.read_existing
    assert not next(namespaces(rerun__retry_quarantined=True)).read_existing
    asked_again = engine()
    asked_again.take_no_earlier_answers()
    assert not (asked_again._next_cache_namespace() or first).read_existing
    assert not next(namespaces(engine__kwargs={"max_model_len": -1})).keep_truncated  # memory may have cut it


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, None),
        ({"task": "score", "query": "{q}", "prompt": "{d}"}, 1),
        ({"task": "embed"}, None),
        ({"task": "embed", "embedding__dimensions": 8}, 8),
        ({"task": "classify", "choices": ["a", "b", "c"]}, 3),
    ],
)
def test_cached_answers_have_as_many_numbers_as_new_ones(
    options: dict[str, Any], numbers: int | None
) -> None:
    namespace = engine(**options)._next_cache_namespace()
    assert namespace is not None
    assert namespace.numbers == numbers


def test_slice_continues_without_a_cache_if_model_files_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(source: str) -> Any:
        raise ConnectionError("the node is gone")

    monkeypatch.setattr("airflow_provider_raydatallm.processor.engines.vllm.engine.model_files", gone)
    assert engine()._next_cache_namespace() is None
    assert "engine.cache: the node is gone. The slice continues without it" in caplog.text


def test_ranks_of_a_worker_are_counted_in_all_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_base, "vllm_is_cpu_build", lambda accelerator_type: False)

    def sizes(workers: int, ranks: int) -> VllmEngine:
        kwargs = {"tensor_parallel_size": 2, "data_parallel_size": ranks, "max_num_seqs": 256}
        return engine(rows=2000, engine__workers=workers, engine__kwargs=kwargs)

    two = sizes(2, ranks=1)
    assert (two.sizes.gpus, two.sizes.max_num_seqs, two.sizes.rows_in_flight) == ((4, 4), 256, 512)
    shared = sizes(2, ranks=4)
    assert (shared.sizes.gpus, shared.sizes.max_num_seqs, shared.sizes.rows_in_flight) == (
        (16, 16),
        1024,
        2048,
    )
    assert (shared.resources.gpus, shared.resources.gpus_on_one_node, shared.resources.cpus) == (16, 8, 8)
    assert (shared.gpus_held(2), shared._worker_options()["num_gpus"]) == (16, 8)
    shared.choose_sizes(SizingInputs(ClusterFacts({"CPU": 64, "GPU": 32}, {}, 8)))
    assert shared.workers == (2, 2)
    auto = engine(rows=10_000, engine__workers="auto", engine__kwargs={"data_parallel_size": 8})
    auto.choose_sizes(SizingInputs(ClusterFacts({"CPU": 64, "GPU": 64}, {}, 8)))
    assert auto.workers == (1, 2)  # of eight ranks with 512 rows each


def test_worker_over_nodes_holds_its_gpus_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_base, "vllm_is_cpu_build", lambda accelerator_type: False)
    kwargs = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    wide = engine(engine__kwargs=kwargs)
    assert (wide.resources.gpus, wide.resources.gpus_on_one_node, wide.gpus_held(1)) == (2, 1, 2)
    options = wide._worker_options()
    assert (options["num_gpus"], options["num_cpus"], len(wide.placement.bundles)) == (0, 1, 2)


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


@pytest.mark.parametrize(("cpus", "grows_to", "most"), [(4, None, 1), (5, None, 2), (8, None, 3), (4, 6, 3)])
def test_workers_leave_cpus_to_what_brings_them_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    cpus: int, grows_to: int | None, most: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(engine_base, "vllm_is_cpu_build", lambda accelerator_type: True)
    vllm = engine(engine__workers=(1, 3))
    vllm.choose_sizes(SizingInputs(ClusterFacts({"CPU": cpus}, {"CPU": grows_to} if grows_to else {})))
    assert vllm.workers == (1, most)
    assert ("engine workers run" in caplog.text) == (most < 3)


def test_rows_with_images_travel_few_at_a_time_and_refused_ones_fail_no_others() -> None:
    text, images = engine(rows=100_000), engine(rows=100_000, images__column="photo")
    assert text.block_rows == 2048
    assert images.block_rows == 32
    assert "mm_processor_cache_gb" not in text.engine_kwargs
    assert images.engine_kwargs["mm_processor_cache_gb"] == 0
    own = engine(images__column="photo", engine__kwargs={"mm_processor_cache_gb": 2})
    assert own.engine_kwargs["mm_processor_cache_gb"] == 2
