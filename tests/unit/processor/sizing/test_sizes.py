from __future__ import annotations

import pytest

from airflow_provider_raydatallm.processor.sizing.sizes import (
    TaskSpread,
    batch_size_for,
    batches_in_flight,
    block_rows,
    dedup_shards,
    default_workers,
    engine_batch_size,
    fewest_blocks,
    fits_one_process,
    fitting_max_model_len,
    gpus,
    is_worth_compiling,
    light_tasks,
    percentile,
    read_tasks,
    rows_in_flight,
    spread_tasks,
    window_rows,
    workers_needed,
)


def test_example_of_the_guides() -> None:
    assert spread_tasks(10_000, blocks=256, batch_size=128, workers=4) == TaskSpread(39, 156, 64, 16)


def test_a_slice_smaller_than_its_blocks_is_one_row_a_block() -> None:
    assert spread_tasks(3, blocks=8, batch_size=2, workers=1) == TaskSpread(1, 2, 2, 2)
    assert spread_tasks(1, blocks=1, batch_size=128, workers=4) == TaskSpread(1, 128, 1, 1)


@pytest.mark.parametrize(("seqs", "rows"), [(1, 257), (256, 512), (1024, 2048)])
def test_rows_in_flight_keep_an_engine_full_while_others_wait(seqs: int, rows: int) -> None:
    assert rows_in_flight(seqs) == rows
    assert rows_in_flight(seqs, batches=4) == 512  # of 128 rows


@pytest.mark.parametrize(
    ("rows", "feeders", "block"), [(1, 2, 16), (2000, 1, 500), (100_000, 2, 2048), (10**9, 128, 2048)]
)
def test_each_feeder_gets_several_blocks(rows: int, feeders: int, block: int) -> None:
    assert block_rows(rows, feeders) == block


def test_the_feeders_that_start_first_leave_rows_to_the_others() -> None:
    assert window_rows(768_000, feeders=128) == 6000
    assert window_rows(100_000_000, feeders=128) == 200_000
    assert window_rows(100, feeders=2) == 2048


def test_gpus_of_workers_that_share_a_model() -> None:
    assert gpus((4, 4), 1) == (4, 4)
    assert gpus((1, 10), 8 * 2) == (16, 160)  # DeepSeek-R1: 8 x 2 = 16 per worker


def test_blocks_per_worker() -> None:
    assert (fewest_blocks(4, varied=False), fewest_blocks(4, varied=True)) == (8, 16)


def test_max_model_len_fits_the_percentile_of_rows() -> None:
    lengths = list(range(1, 101))
    assert [percentile(lengths, p) for p in (0, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert fitting_max_model_len(lengths, 95) == 128  # in steps of 64
    assert [fitting_max_model_len([60, 65, 900], p, positions=512) for p in (10, 60, 100)] == [64, 128, 512]


@pytest.mark.parametrize("percent", [-1, 100.1, float("nan")])
def test_percentile_outside_of_0_to_100_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1], percent)


def test_workers_needed_to_finish_in_time() -> None:
    # 1,000,000 rows at 20 ms a row for one worker, in two hours.
    assert workers_needed(1_000_000, 0.02, 7200) == 3
    assert workers_needed(360, 10, 3600) == 1
    assert (
        batch_size_for(workers=8, current_workers=4, batch_size=256) == 128
    )  # twice the workers, half the batch


def test_short_slices_are_not_compiled_for() -> None:
    assert not is_worth_compiling(2000, 400.0)
    assert is_worth_compiling(60_000, 400.0)
    assert is_worth_compiling(2000, 20.0)
    assert [is_worth_compiling(n, None) for n in (500, 501)] == [False, True]


def test_default_workers_depend_on_gpus_and_rows() -> None:
    assert default_workers(8, 1, 1_000_000) == (1, 8)
    assert default_workers(8, 4, 1_000_000) == (1, 2)
    assert default_workers(8, 1, 2000) == (1, 3)  # at least 4 batches of 128 each
    assert default_workers(8, 1, 10) == default_workers(0, 1, 10**6) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "workers", "size"),
    [(1, 1, 16), (100, 1, 25), (4000, 1, 128), (1_000_000, 10, 128), (4000, 10, 100)],
)
def test_batch_size_gives_every_worker_batches(rows: int, workers: int, size: int) -> None:
    assert engine_batch_size(rows, workers) == size


def test_batches_in_flight_cover_the_rows_that_the_engine_runs() -> None:
    for size in (1, 16, 128, 1024, 100_000):
        assert size * batches_in_flight(size) >= 4 * 1024
        assert size * batches_in_flight(size, max_num_seqs=3000) >= 3000
    assert batches_in_flight(128, max_num_seqs=64) == 4


def test_tasks_around_the_engine_are_bounded() -> None:
    assert [read_tasks(u, 8) for u in (1, 10, 1000)] == [1, 10, 32]
    assert [light_tasks(c) for c in (1, 8, 100)] == [1, 2, 25]


def test_small_slice_fits_one_process() -> None:
    sizes = [(1, 1), (4096, 16), (4097, 1), (1, 17)]
    assert [fits_one_process(rows, units) for rows, units in sizes] == [True, True, False, False]


def test_coordinators_of_identical_rows_grow_with_the_workers() -> None:
    assert [dedup_shards(w) for w in (0, 1, 16, 17, 64, 1024)] == [1, 1, 1, 2, 4, 8]
