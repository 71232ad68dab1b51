"""What speculation by n-grams could draft is measured on a sample."""

from __future__ import annotations

from airflow_provider_raydatallm.processor.engines.vllm.repetition import RepetitionSample, repeated_share


def test_tokens_count_that_follow_the_same_two_as_in_the_prompt() -> None:
    sample = RepetitionSample()
    sample.add([1, 2, 3, 4, 1, 2], [3, 4, 9, 4, 1, 2])
    assert (sample.repeated, sample.tokens) == (3, 6)  # of 1 2 3, 2 3 4 and 4 1 2 the last
    assert repeated_share([sample]) is None  # too few say little


def test_one_row_of_many_is_looked_at() -> None:
    sample = RepetitionSample()
    for _ in range(129):
        sample.add([7] * 10, [7] * 200)
    assert sample.tokens == 3 * 200
    assert repeated_share([sample, RepetitionSample()]) == 1.0
    other = RepetitionSample()
    other.add([7] * 10, [8] * 600)
    assert repeated_share([sample, other]) == 0.5
