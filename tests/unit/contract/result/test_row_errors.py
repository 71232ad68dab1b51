from __future__ import annotations

from airflow_provider_raydatallm.contract.result.row_errors import changes_for, may_be_asked_again


def test_changes_are_named_for_what_failed_the_most_frequent_first() -> None:
    reasons = {"TruncatedAnswer": 1_200, "PromptTooLong": 44, "ValueError": 3, "InvalidOutput": 0}
    assert [text.split(":")[1].split(" of ")[0] for text in changes_for(reasons)] == [" 1,200", " 44"]
    assert changes_for(reasons)[0].startswith("Raise max_tokens")
    assert changes_for({"ValueError": 3}) == []
    [missing] = changes_for({"ModuleNotFoundError in mine:f (mine.py:3)": 100})
    assert missing.startswith("Install what the function imports")


def test_asking_again_helps_only_where_the_next_answer_may_be_another() -> None:
    assert may_be_asked_again({"TruncatedAnswer": 44, "ValueError": 3})
    assert not may_be_asked_again({"TruncatedAnswer": 44, "InvalidOutput": 2})
    assert not may_be_asked_again({"ModuleNotFoundError in mine:f (mine.py:3)": 100})
