from __future__ import annotations

import importlib
import json
import pickle
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.serde import serialize

from airflow_provider_raydatallm.contract.log.marked_lines import MAX_BYTES, encode_line
from airflow_provider_raydatallm.contract.result.errors import SliceError, log_text
from airflow_provider_raydatallm.contract.result.failure import FINAL, Failure, Place
from tests.support.paths import ROOT

WHOLE = Failure(
    "input",
    "column 'age' of a.csv is no whole number",
    advice=("Set source.column_types", "Or leave the file out"),
    place=Place(file="a.csv", column="age", row=7, worker="2", node="n1"),
    cause="ArrowInvalid: Could not convert",
    row_texts=("'young'",),
    counts={"planned": 9, "finished": 4, "failed": 1},
    log=("first", "last"),
    log_of="the head",
    frames=("at a.py:1 in f: g()",),
    code="too_many_failed",
)


def test_a_record_comes_back_from_json_and_from_pickle_as_it_was() -> None:
    assert Failure.parse(json.loads(json.dumps(WHOLE.to_json()))) == WHOLE
    assert serialize(WHOLE.to_json()) == WHOLE.to_json()  # an XCom has it as it is
    assert pickle.loads(pickle.dumps(WHOLE)) == WHOLE
    assert pickle.loads(pickle.dumps(SliceError.of(WHOLE))).failure == WHOLE


def test_error_of_any_class_is_made_of_a_record() -> None:
    for file in (ROOT / "airflow_provider_raydatallm").rglob("*.py"):
        if re.search(r"^class \w+\(\w*Error\):", file.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    classes = {SliceError}
    while found := {sub for cls in classes for sub in cls.__subclasses__()} - classes:
        classes |= found
    assert len(classes) > 10
    for cls in classes:
        error = cls.of(WHOLE)
        for same in (error, pickle.loads(pickle.dumps(error))):
            assert type(same) is cls
            assert same.failure == WHOLE
            assert str(same) == WHOLE.text
            assert same.log is None


@pytest.mark.parametrize(("error", "text"), [
    (SliceError.of(WHOLE), WHOLE.sentence), (ValueError("Jane Doe"), "ValueError"),
    (pa.ArrowKeyError("Jane Doe"), "ArrowKeyError"),
    (PermissionError("no access"), "PermissionError: no access"),
])  # fmt: skip
def test_log_has_no_text_of_a_row(error: Exception, text: str) -> None:
    assert log_text(error) == text


def test_message_has_the_sentence_first_then_what_to_do_then_what_led_to_it() -> None:
    assert WHOLE.message.splitlines() == [
        "column 'age' of a.csv is no whole number: 'young'. Set source.column_types. Or leave the file out",
        "ArrowInvalid: Could not convert",
        "at a.py:1 in f: g()",
    ]


@pytest.mark.parametrize("text", ["x" * 90_000, "ä\u2028" * 40_000, "\ud800" * 9_000])
def test_any_record_fits_a_marked_line(text: str) -> None:
    """The sentence goes last."""
    large = Failure(
        "engine", f"it died: {text}", advice=(text,) * 20, cause=f"{text}\n{text}", row_texts=(text,) * 20,
        log=(text,) * 99, frames=(text,) * 9,
    )  # fmt: skip
    value = large.to_json(MAX_BYTES)
    encode_line("error", "nonce", value)
    assert Failure.parse(value).sentence.startswith("it died: ")
    small = large.to_json(600)
    assert len(json.dumps(small)) <= 600
    assert small["sentence"].startswith("it died: ")
    assert "log" not in small


@pytest.mark.parametrize("failure", [
    Failure("input", "x", counts={f"n{i}": i for i in range(4000)}),
    Failure("input", "x", place=Place(file="ä" * 20_000, column="c" * 20_000, worker="w" * 9999)),
])  # fmt: skip
@pytest.mark.parametrize("most_bytes", [1, 100, 2000])
def test_counts_and_place_are_bounded_and_left_out_first(failure: Failure, most_bytes: int) -> None:
    value = failure.to_json(most_bytes)
    assert value["sentence"] == "x"
    assert len(json.dumps(value)) <= max(most_bytes, 40)


def test_counts_and_place_are_safe_too() -> None:
    bad = "a\x1b[2J\n::endgroup:: password=hunter22secret"
    failure = Failure("input", "x", counts={bad: 1}, place=Place(file=bad, column=bad))
    for text in (*failure.counts, failure.place.file, failure.place.column):
        assert text is not None
        assert text.isprintable()
        assert "hunter22" not in text


def test_secret_is_masked_where_a_text_is_cut_and_over_lines() -> None:
    token = "hf_abcdefABCDEF0123456789xyz"
    assert "hf_abc" not in Failure("transient", " " * 7980 + f"token {token}").sentence
    key = (
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nAAAABBBBCCCCDDDD\n-----END PRIVATE KEY-----"
    )
    assert "MIIEvQ" not in Failure("transient", "x", cause=f"it held\n{key}\nend").cause


def test_the_end_of_a_log_says_more_than_its_beginning() -> None:
    log = tuple(f"line {i}" for i in range(100))
    kept = Failure("engine", "it died", log=log).log
    assert kept == log[-40:]
    assert Failure.parse(Failure("engine", "it died", log=log).to_json(400)).log[-1] == "line 99"


def test_secrets_and_what_a_terminal_would_obey_are_in_no_text() -> None:
    bad = "a\x1b[31mb\x00 password=hunter22secret\nsecond"
    failure = Failure(
        "input", bad, advice=(bad,), cause=bad, row_texts=(bad,), log=(bad,), frames=(bad,),
        place=Place(file="a.csv"),
    )  # fmt: skip
    for text in (json.dumps(failure.to_json()), failure.message):
        assert "hunter22" not in text
        assert "\x1b" not in text
        assert "\x00" not in text
    assert "\n" not in failure.sentence
    assert failure.cause.splitlines()[1] == "second"


@pytest.mark.parametrize("value", [
    None, 7, "text", [], {}, {"kind": ["x"]}, {"sentence": None, "advice": 7, "place": [], "counts": "x"},
    {"kind": "of a later version", "sentence": {"new": 1}, "log": "x", "place": {"row": "7", "file": 7}},
    {"kind": "engine", "counts": {"planned": True, "rows": 1.5, 7: "x"}, "new": "field"},
])  # fmt: skip
def test_what_another_version_wrote_is_a_record_too(value: Any) -> None:
    failure = Failure.parse(value)
    assert failure.sentence
    assert failure.place == Place()
    assert failure.code == ""
    assert failure.can_retry
    assert json.loads(json.dumps(failure.to_json())) == failure.to_json()


def test_for_other_systems_no_text_may_quote_a_row() -> None:
    without = WHOLE.without_row_texts()
    assert (without.sentence, without.advice, without.place) == (WHOLE.sentence, WHOLE.advice, WHOLE.place)
    assert "young" not in json.dumps(without.to_json())
    assert without.frames == ("at a.py:1",)
    of_a_row = replace(WHOLE, frames=("at Jane Doe's:1 in f: g()", "at /srv/my-code/b.py:12 in f: raise"))
    assert of_a_row.without_row_texts().frames == ("at /srv/my-code/b.py:12",)
    of_others = Failure("transient", "KeyError: 'the row'", cause="KeyError: 'the row'\nmore")
    assert of_others.without_row_texts().text == "KeyError"
    in_both = replace(of_others, sentence="worker 2 died: KeyError: 'the row'")
    assert in_both.without_row_texts().text == "worker 2 died: KeyError"


def test_before_a_row_was_asked_only_what_rows_hold_and_the_jobs_log_are_hidden() -> None:
    early = replace(WHOLE, before_rows=True)
    assert early.without_row_texts() == replace(early, row_texts=(), log=(), log_of="")
    assert Failure.parse(early.to_json()) == early


@pytest.mark.parametrize("folder", ["py_modules_files/_ray_pkg_0a1b", "working_dir_files/s3_bucket_code"])
def test_code_that_came_with_the_job_is_named_as_its_author_knows_it(folder: str) -> None:
    path = f"/tmp/ray/session_2026-01-01_1/runtime_resources/{folder}/mine/engine.py"
    failure = Failure(
        "transient", f"{path} fails", cause=f'File "{path}", line 7\nx', frames=(f"at {path}:7 in f: g()",),
        place=Place(file=path), log=(f"{path}:7: it fails",),
    )  # fmt: skip
    assert "/tmp" not in json.dumps(failure.to_json())
    assert (failure.frames, failure.place.file) == (("at mine/engine.py:7 in f: g()",), "mine/engine.py")
    assert failure.without_row_texts().frames == ("at mine/engine.py:7",)


def test_what_no_retry_can_fix() -> None:
    assert {"input", "model", "cluster", "connection"} == FINAL
    assert not WHOLE.can_retry


def test_sentences_that_end_with_a_mark_of_their_own_get_no_full_stop() -> None:
    failure = Failure("input", "it ends at byte 5", advice=("Is it truncated?", "If so, write it again"))
    assert failure.text == "it ends at byte 5. Is it truncated? If so, write it again"
    assert Failure("input", "No room.", advice=("Wait",)).text == "No room. Wait"


@pytest.mark.parametrize(("counts", "words"), [
    ({"planned": 1950, "finished": 65, "failed": 3, "invalid_output": 2},
     "1,950 planned = 62 answered + 3 failed (2 invalid output) + 1,885 left"),
    ({"planned": 195, "finished": 195}, "195 planned = 195 answered"),
    ({"planned": 1014, "finished": 128, "failed": 481}, ""),
    ({}, ""),
])  # fmt: skip
def test_each_planned_row_is_counted_once(counts: dict[str, int], words: str) -> None:
    assert Failure("engine", "it died", counts=counts).count_words == words
